"""Replay of recorded launches on a simulated device, to estimate the cost of a share."""
