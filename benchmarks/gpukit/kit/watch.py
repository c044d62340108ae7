"""What NVML shows of the first device: memory, processes, utilization."""

import ctypes
import json

from kit import cuda
from kit.stages import memory

ENTRIES = 256
INSUFFICIENT_SIZE = 7


class _Process(ctypes.Structure):  # nvmlProcessInfo_t, of _v3 and _v2
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]  # fmt: skip


class Watch:
    def __init__(self):
        self.nvml = cuda.nvml()
        self.handle = memory.first_handle(self.nvml)

    def used(self):
        """Return the bytes in use on the device."""
        return memory.used(self.nvml, self.handle)

    def processes(self):
        """Return the bytes of each compute process, by the pid that NVML shows."""
        count, found = ctypes.c_uint(ENTRIES), (_Process * ENTRIES)()
        self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.handle, ctypes.byref(count), found)
        return {one.pid: one.bytes for one in found[: count.value]}

    def load(self):
        """Return the utilization of the device in percent."""
        rates = (ctypes.c_uint * 2)()
        self.nvml.nvmlDeviceGetUtilizationRates(self.handle, rates)
        return rates[0]


def attempt(report, name, call):
    """Return what *call* returns; None, and report why, if the driver refuses or lacks it."""
    try:
        return call()
    except (cuda.CudaError, AttributeError, OSError) as exc:
        report.missing(name, exc)
        return None


def last_line(process, seconds):
    """Let a process that has printed ``ready`` begin; return its last line of JSON, or None."""
    process.stdout.readline()
    lines = process.communicate("go\n", timeout=seconds)[0].splitlines()
    return json.loads(lines[-1]) if lines else None
