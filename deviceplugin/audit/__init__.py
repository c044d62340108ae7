"""Audit of the processes on the devices, and of the containers' ledgers."""
