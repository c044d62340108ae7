"""NVML sessions on a given libnvidia-ml file, never on a loaded shim, and queries in a session.

The queries need an open session (:func:`session`), and raise pynvml.NVMLError unless they say
otherwise. Devices are given by UUID.
"""

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

# Reasons for which a device in MIG mode is unhealthy; other modules compare them.
MIG_MODE = (
    "it is in MIG mode without MIG devices; `nvidia-smi mig -cgi ID -C` makes one, "
    "`nvidia-smi -mig 0` makes it a whole device again"
)
MIG_DIVIDED = "it is divided into MIG devices"
# Errors of a device or driver that does not support the call.
UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@contextlib.contextmanager
def session(library: Path) -> Iterator[None]:
    """Initialize NVML of *library* and shut it down; raises OSError or pynvml.NVMLError."""
    # nvidia-ml-py would load the library by name, which may be a mirror's shim; so set it first.
    loaded = ctypes.CDLL(str(library))
    if pynvml.nvmlLib is None or pynvml.nvmlLib._handle != loaded._handle:
        # nvidia-ml-py's cache has function pointers of another library.
        pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = loaded
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def has_function(library: Path, function: str) -> bool:
    """Return whether *library* exports *function*; needs no session. Raises OSError."""
    return hasattr(ctypes.CDLL(str(library)), function)


def is_in_mig_mode(handle: c_void_p) -> bool:
    """Return whether a device is in MIG mode now."""
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as exc:
        if exc.value in UNSUPPORTED:  # board or driver without MIG
            return False
        raise
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def mig_devices(handle: c_void_p) -> Iterator[c_void_p]:
    """Yield the handles of a GPU's MIG devices; a handle is valid as long as its instance."""
    try:
        most = number(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except pynvml.NVMLError as exc:
        if exc.value in UNSUPPORTED:
            return
        raise
    for index in range(most):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as exc:
            # Indices are not contiguous.
            if exc.value not in (pynvml.NVML_ERROR_NOT_FOUND, *UNSUPPORTED):
                raise


def most_multiprocessors(handle: c_void_p) -> int:
    """Return the number of SMs of the largest GPU instance that a GPU can have; 0: unknown."""
    most = 0
    for profile in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
        except pynvml.NVMLError:  # this GPU or driver does not have the profile
            continue
        most = max(most, int(info.multiprocessorCount))
    return most


def number(value: Any) -> int:
    """Return the int of *value*, which nvidia-ml-py returns as an int or as a ctypes object."""
    return int(getattr(value, "value", value))


def bytes_by_pid(uuid: str, uncounted: int = 0) -> dict[int, int]:
    """Return the bytes that each process holds on a device, by pid in NVML's pid namespace.

    *uncounted* bytes are added for each process: memory that NVML attributes to none.
    """
    return bytes_by_pid_of(pynvml.nvmlDeviceGetHandleByUUID(uuid), uncounted)


def bytes_by_pid_of(handle: c_void_p, uncounted: int = 0) -> dict[int, int]:
    """Like :func:`bytes_by_pid`, of the device with this *handle*."""
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
    """Return the bytes of a device that are in use, by processes or the driver itself."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)


def compute_mode(uuid: str) -> int:
    """Return a device's compute mode, NVML_COMPUTEMODE_*."""
    return int(pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid)))


def compute_capability(uuid: str) -> tuple[int, int]:
    """Return a device's compute capability, such as (9, 0)."""
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    )
    return int(major), int(minor)


def multiprocessors(uuid: str) -> int:
    """Return the number of SMs of a device or a MIG device."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if number(pynvml.nvmlDeviceIsMigDeviceHandle(handle)):
        return int(pynvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
    capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) // _cores_of_sm(*capability)


def _cores_of_sm(major: int, minor: int) -> int:
    """Return the FP32 cores of an SM, from the throughput table of the CUDA programming guide."""
    return 64 if (major, minor) in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128


def minor_number(uuid: str) -> int:
    """Return N of the device's file /dev/nvidiaN."""
    return int(pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(uuid)))


def total_bytes(uuid: str) -> int:
    """Return the total bytes of a device."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).total)


def set_memory_limit(uuid: str, cgroup: Path, size: int) -> None:
    """Limit the bytes of a device for the processes of a v2 *cgroup*, given by its folder.

    Raises NVMLError: NO_PERMISSION unless the caller is root, NOT_SUPPORTED or
    FUNCTION_NOT_FOUND if the driver does not support limits.
    """
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), 0, size)
    pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)


def read_memory_limit(uuid: str, cgroup: Path) -> int | None:
    """Return the bytes set by :func:`set_memory_limit`; None: no limit."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup))
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
    none = limits.hardLimit == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
    return None if none else int(limits.hardLimit)


def largest_by_pid(listed: Iterable[tuple[int, int | None]]) -> dict[int, int]:
    """Merge lists of (pid, bytes) into one entry for each process; None: bytes unknown, left out.

    A process with graphics and compute contexts is in two lists with the same size, and an MPS
    client may be, too.
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
        if exc.value in UNSUPPORTED:  # older drivers include them in the other lists
            return ()
        raise
    return found


def sm_percent_by_pid(handle: c_void_p, since: float) -> dict[int, int] | None:
    """Return the SM utilization of each process in percent, by pid in NVML's pid namespace.

    It is that of the newest sample after *since* (seconds since the epoch); processes without a
    sample are left out. None if the driver does not provide samples.
    """
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, int(since * 1e6))
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
            return {}
        if exc.value in (*UNSUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION):
            return None
        raise
    newest: dict[int, tuple[int, int]] = {}
    for sample in samples:
        newest[sample.pid] = max(newest.get(sample.pid, (0, 0)), (sample.timeStamp, sample.smUtil))
    return {pid: percent for pid, (_, percent) in newest.items()}
