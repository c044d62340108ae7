"""End the sidecars of pods whose own work is done, so that pod and Job end by that work alone."""
