"""GPU instances of MIG through NVML: profiles, listing, creation, destruction; in an open session.

A profile's id and size are asked of each GPU: the same id is another profile on another model, and
sizes differ between boards and driver releases. An instance is found by its profile and placement,
never by its id: ids and handles are used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import errors, nvml
from pyvgpu.allocator import datatypes, mig_placement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ctypes import c_void_p

_PREFIX = "MIG "  # of a profile's name
# Compute profiles with the slices of others, which not every GPU has.
_NOT_WHOLE = (
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL,
)


@dataclasses.dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance."""

    id: int
    uuid: str  # MIG-...; new with each creation


@dataclasses.dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance and its compute instances."""

    id: int
    place: str  # such as 1g.10gb@6
    devices: tuple[MigDevice, ...]


def profiles(handle: c_void_p) -> tuple[datatypes.MigProfile, ...]:
    """Return the profiles of a GPU; none if it or its driver has no MIG. NVMLError."""
    return tuple(_profiles(handle))


def _profiles(handle: c_void_p) -> Iterator[datatypes.MigProfile]:
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        except pynvml.NVMLError as exc:
            if exc.value in nvml.UNSUPPORTED:  # not of this GPU
                continue
            if exc.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:  # of a later driver
                return
            raise
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        places = _placements(handle, info.id)
        if not places:
            continue
        yield datatypes.MigProfile(
            name.removeprefix(_PREFIX),
            int(info.id),
            int(info.memorySizeMB) << 20,
            int(info.multiprocessorCount),
            int(info.sliceCount),
            places[0].size,
            int(info.instanceCount),
            tuple(each.start for each in places),
        )


def _placements(handle: c_void_p, profile: int) -> list[pynvml.c_nvmlGpuInstancePlacement_t]:
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    if count.value:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            handle, profile, found, ctypes.byref(count)
        )
    return list(found[: count.value])


def listing(handle: c_void_p, known: tuple[datatypes.MigProfile, ...]) -> tuple[GpuInstance, ...]:
    """Return all instances of a GPU whose profiles are *known*. NVMLError."""
    return tuple(
        GpuInstance(
            int(info.id),
            mig_placement.place(profile.name, info.placement.start),
            tuple(_devices(instance, profile)),
        )
        for profile in known
        for instance, info in _instances(handle, profile)
    )


def _instances(
    handle: c_void_p, profile: datatypes.MigProfile
) -> Iterator[tuple[c_void_p, pynvml.c_nvmlGpuInstanceInfo_t]]:
    found = (pynvml.c_nvmlGpuInstance_t * max(profile.most, len(profile.starts)))()
    count = ctypes.c_uint()
    try:
        pynvml.nvmlDeviceGetGpuInstances(handle, profile.id, found, ctypes.byref(count))
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_SUPPORTED:  # MIG mode is off
            return
        raise
    for instance in found[: count.value]:
        yield instance, pynvml.nvmlGpuInstanceGetInfo(instance)


def _devices(instance: c_void_p, profile: datatypes.MigProfile) -> Iterator[MigDevice]:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(pynvml.NVMLError):  # not of this GPU instance
            kind = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
            found = (pynvml.c_nvmlComputeInstance_t * max(profile.slices, 1))()
            count = ctypes.c_uint()
            pynvml.nvmlGpuInstanceGetComputeInstances(
                instance, kind.id, found, ctypes.byref(count)
            )
            for each in found[: count.value]:
                yield _device(each)


def _device(compute: c_void_p) -> MigDevice:
    info = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    return MigDevice(int(info.id), str(pynvml.nvmlDeviceGetUUID(info.device)))


def create(handle: c_void_p, profile: datatypes.MigProfile, start: int) -> None:
    """Create a GPU instance at a memory slice, without a compute instance. NVMLError."""
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.size)
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(wanted))


def complete(handle: c_void_p, instance: int, profile: datatypes.MigProfile) -> MigDevice:
    """Create the compute instance that has all of a GPU instance, given by its id. NVMLError."""
    found = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance)
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        if number in _NOT_WHOLE:
            continue
        try:
            kind = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                found, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except pynvml.NVMLError as exc:
            if exc.value in (*nvml.UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        if int(kind.sliceCount) == profile.slices:
            return _device(pynvml.nvmlGpuInstanceCreateComputeInstance(found, kind.id))
    raise errors.UnavailableError(
        f"GPU instance {instance} of {profile.name}: NVML offers no compute instance of "
        f"{profile.slices} slices"
    )


def destroy_device(handle: c_void_p, instance: int, compute: int) -> None:
    """Destroy a compute instance; nothing if it is gone. NVMLError IN_USE if processes use it."""
    with _gone():
        found = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance)
        pynvml.nvmlComputeInstanceDestroy(
            pynvml.nvmlGpuInstanceGetComputeInstanceById(found, compute)
        )


def destroy(handle: c_void_p, instance: int) -> None:
    """Destroy a GPU instance; nothing if it is gone. NVMLError IN_USE if it is in use."""
    with _gone():
        pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(handle, instance))


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as exc:
        # MIG mode that is off has no instances.
        if exc.value not in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED):
            raise
