"""NVML's figures of the first device: memory, processes, utilization."""

import ctypes
import json

from kit import cuda
from kit.stages import memory

ENTRIES = 256
LISTS = "nvmlDeviceGetComputeRunningProcesses"  # _v3 since release 510, _v2 since 460
GPU_SAMPLES = 1  # NVML_GPU_UTILIZATION_SAMPLES


class _Process(ctypes.Structure):  # nvmlProcessInfo_t, of _v3 and _v2
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]  # fmt: skip


class _OlderProcess(ctypes.Structure):  # nvmlProcessInfo_v1_t
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong)]


class _Sample(ctypes.Structure):  # nvmlSample_t
    _fields_ = [("us", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong)]


class _Use(ctypes.Structure):  # nvmlProcessUtilizationSample_t
    _fields_ = [("pid", ctypes.c_uint), ("us", ctypes.c_ulonglong), ("sm", ctypes.c_uint),
                ("memory", ctypes.c_uint), ("encoder", ctypes.c_uint),
                ("decoder", ctypes.c_uint)]  # fmt: skip


class Watch:
    """NVML's view of the device with UUID *name*, or of the device that is measured."""

    def __init__(self, name=None):
        self.nvml = cuda.nvml()
        self.handle = cuda.nvml_handle(self.nvml, name)

    def used(self):
        """Return the bytes in use on the device."""
        return memory.used(self.nvml, self.handle)

    def processes(self):
        """Return the bytes of each compute process, by the pid that NVML shows."""
        version = next((v for v in ("_v3", "_v2") if hasattr(self.nvml.raw, LISTS + v)), "")
        count = ctypes.c_uint(ENTRIES)
        found = ((_Process if version else _OlderProcess) * ENTRIES)()
        getattr(self.nvml, LISTS + version)(self.handle, ctypes.byref(count), found)
        return {one.pid: one.bytes for one in found[: count.value]}

    def load(self):
        """Return the utilization of the device in percent."""
        rates = (ctypes.c_uint * 2)()
        self.nvml.nvmlDeviceGetUtilizationRates(self.handle, rates)
        return rates[0]

    def samples(self):
        """Return the times of NVML's samples of utilization, us since 1970, oldest first."""
        count, kind = ctypes.c_uint(), ctypes.c_uint()
        ask = self.nvml.nvmlDeviceGetSamples
        since = ctypes.c_ulonglong(0)
        ask(self.handle, GPU_SAMPLES, since, ctypes.byref(kind), ctypes.byref(count), None)
        found = (_Sample * max(1, count.value))()
        ask(self.handle, GPU_SAMPLES, since, ctypes.byref(kind), ctypes.byref(count), found)
        return sorted(one.us for one in found[: count.value] if one.us)

    def use(self, pid):
        """Return (time in us since 1970, percent of the SMs) that NVML has of process *pid*."""
        count, found = ctypes.c_uint(ENTRIES), (_Use * ENTRIES)()
        self.nvml.nvmlDeviceGetProcessUtilization(
            self.handle, found, ctypes.byref(count), ctypes.c_ulonglong(0)
        )
        return sorted((one.us, one.sm) for one in found[: count.value] if one.pid == pid)


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
