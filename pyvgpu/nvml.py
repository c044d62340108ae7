"""NVML of a driver that is named by its file, never of a shim that happens to be loaded."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

import pynvml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ctypes import c_void_p
    from pathlib import Path

# Why a device in MIG mode is unhealthy; to one text, by which that reason is known again.
MIG_MODE = "it is in MIG mode; `nvidia-smi -mig 0` makes it a whole device again"
_WITHOUT_MIG = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@contextlib.contextmanager
def session(library: Path) -> Iterator[None]:
    """Start NVML of *library* and end it; raises OSError or pynvml.NVMLError."""
    # nvidia-ml-py loads by name, which may be a mirror's shim; it takes a loaded one as it is.
    loaded = ctypes.CDLL(str(library))
    if pynvml.nvmlLib is None or pynvml.nvmlLib._handle != loaded._handle:
        # It remembers where functions are, and these are another driver's.
        pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = loaded
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def is_in_mig_mode(handle: c_void_p) -> bool:
    """Tell whether a device is divided into MIG instances now; NVMLError if it does not answer."""
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as exc:
        if exc.value in _WITHOUT_MIG:  # the board has none, or the driver knows none
            return False
        raise
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def bytes_by_pid(uuid: str) -> dict[int, int]:
    """Return the bytes that each process holds on a device, by NVML's own pids."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    held: dict[int, int] = {}
    for listing in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for process in listing(handle):
            if process.usedGpuMemory is not None:  # the driver cannot tell
                # One that draws and computes is in both lists, with the same figure.
                held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory)
    return held
