"""NVML of a driver that is named by its file, never of a shim that happens to be loaded."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Any

import pynvml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from ctypes import c_void_p
    from pathlib import Path

# Why a device in MIG mode is unhealthy; to one text, by which that reason is known again.
MIG_MODE = "it is in MIG mode; `nvidia-smi -mig 0` makes it a whole device again"
# The device or the driver has nothing of the kind.
UNKNOWN = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


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


def knows(library: Path, function: str) -> bool:
    """Tell whether the NVML of *library* has a *function*; it is not started. OSError."""
    return hasattr(ctypes.CDLL(str(library)), function)


def is_in_mig_mode(handle: c_void_p) -> bool:
    """Tell whether a device is divided into MIG instances now; NVMLError if it does not answer."""
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as exc:
        if exc.value in UNKNOWN:  # the board has none, or the driver knows none
            return False
        raise
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def bytes_by_pid(uuid: str, uncounted: int = 0) -> dict[int, int]:
    """Return the bytes that each process holds on a device, by NVML's own pids.

    *uncounted* is what each takes besides, in bytes, which NVML counts for none.
    """
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return largest_by_pid(
        (process.pid, None if process.usedGpuMemory is None else process.usedGpuMemory + uncounted)
        for listing in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            _list_clients_of_mps,
        )
        for process in listing(handle)
    )


def used_bytes(uuid: str) -> int:
    """Return the bytes of a device that are in use, of processes or of the driver itself."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)


def total_bytes(uuid: str) -> int:
    """Return the bytes that a device has in all."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).total)


def set_memory_limit(uuid: str, cgroup: Path, size: int) -> None:
    """Let processes of a cgroup of version 2, by its folder, hold so many bytes of a device.

    Raises NVMLError: NO_PERMISSION unless the caller is root, NOT_SUPPORTED or
    FUNCTION_NOT_FOUND where the driver has no such limits.
    """
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), 0, size)
    pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)


def read_memory_limit(uuid: str, cgroup: Path) -> int | None:
    """Return the bytes that :func:`set_memory_limit` has set; None: it has set none. NVMLError."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup))
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
    none = limits.hardLimit == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
    return None if none else int(limits.hardLimit)


def largest_by_pid(listed: Iterable[tuple[int, int | None]]) -> dict[int, int]:
    """Return each process's bytes once, of lists of which several may name it.

    One that draws and computes is in two with the same figure, and so may be a client of MPS.
    None is a size that the driver cannot tell.
    """
    held: dict[int, int] = {}
    for pid, size in listed:
        if size is not None:
            held[pid] = max(held.get(pid, 0), size)
    return held


def _list_clients_of_mps(handle: c_void_p) -> Sequence[Any]:
    try:
        found: Sequence[Any] = pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
    except pynvml.NVMLError as exc:
        if exc.value in UNKNOWN:  # an older driver's lists of processes have them
            return ()
        raise
    return found


def sm_percent_by_pid(uuid: str, since: float) -> dict[int, int] | None:
    """Return the percent of a device's time that each process used, by NVML's own pids.

    Of the newest sample since the time *since* (seconds since the epoch); processes that NVML has
    no sample of are left out. None where the driver has no such samples.
    """
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, int(since * 1e6))
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
            return {}
        if exc.value in (*UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION):
            return None
        raise
    newest: dict[int, tuple[int, int]] = {}
    for it in samples:
        newest[it.pid] = max(newest.get(it.pid, (0, 0)), (it.timeStamp, it.smUtil))
    return {pid: percent for pid, (_, percent) in newest.items()}
