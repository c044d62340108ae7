"""The GPU kit: measures one machine with a real (or simulated) GPU and writes a record of it.

Needs Python 3.11 or later and a driver, nothing else: CUDA and NVML are called by ctypes.
"""
