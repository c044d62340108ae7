"""Scheduler extender that chooses node and devices: pure decisions, with all I/O in shell/."""
