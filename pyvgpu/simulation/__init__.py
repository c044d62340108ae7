"""The simulated driver's machines: their models, their device law, their folders."""
