"""Tenants of one simulated device, held to their quotas before your eyes.

``facts`` is what a demonstration observes, ``claims`` judges it and ``script`` says what comes
next: pure functions all. ``stage`` starts the tenants by the real `pyvgpu run` and does what the
script says, ``meter`` reads the ledgers and asks the driver, ``show`` draws.
"""
