"""The devices of a driver: discovery and selection."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from typing import TYPE_CHECKING

from pyvgpu import errors, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from ctypes import c_void_p
    from pathlib import Path

    from pyvgpu.simulation import simulator

CONTEXT_BYTES = 640 << 20  # reserve for a context on a GPU without a measurement
GREEN_BYTES = 64 << 20  # for a green context
_PREFIX = "GPU-"
# Indices of MIG devices: those of the first GPU begin with 100, of the second with 200.
INSTANCE_INDICES = 100


@dataclasses.dataclass(frozen=True, slots=True)
class MigInstance:
    """What a MIG device is of its GPU."""

    parent: str  # UUID of the GPU
    gpu_index: int
    index: int  # among the MIG devices of the GPU
    gpu_instance: int  # id, in the driver's numbering
    compute_instance: int
    sm_percent: int  # its multiprocessors, in percent of the GPU's: the vcore of the GPU


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One physical (or simulated) GPU, or one MIG device of it, known by its UUID."""

    uuid: str  # as NVML writes it: GPU- or MIG-, and xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
    index: int  # for display only
    name: str
    memory_bytes: int  # 0 in MIG mode, if NVML does not report it
    context_bytes: int  # reserve for one context
    mig: bool = False  # a GPU in MIG mode without MIG devices, which cannot be used
    green_bytes: int = 0  # reserve for a green context
    uncounted_bytes: int = 0  # used by each process with a context, but not attributed by NVML
    instance: MigInstance | None = None  # of a MIG device

    def __post_init__(self) -> None:
        uuid_bytes(self.uuid)

    @property
    def label(self) -> str:
        """The device's name in messages."""
        return f"device {self.place} ({self.name})"

    @property
    def place(self) -> str:
        """The index of a GPU, such as 0; that of its GPU and its own of a MIG device: 0:1."""
        found = self.instance
        return str(self.index) if found is None else f"{found.gpu_index}:{found.index}"


def is_instance(text: str) -> bool:
    """Return whether a UUID is that of a MIG device."""
    return text.startswith(names.MIG_UUID_PREFIX)


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of the UUID of a device or a MIG device."""
    try:
        if not text.startswith((_PREFIX, names.MIG_UUID_PREFIX)):
            raise ValueError(text)
        return uuid.UUID(text[len(_PREFIX) :]).bytes
    except ValueError as exc:
        raise errors.DataError(
            f"device UUID {text!r}: must read {_PREFIX}xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or "
            f"the same with {names.MIG_UUID_PREFIX} for a MIG device"
        ) from exc


def uuid_text(raw: bytes, *, instance: bool = False) -> str:
    """Return 16 bytes as NVML writes the UUID of a device, or of a MIG device."""
    return f"{names.MIG_UUID_PREFIX if instance else _PREFIX}{uuid.UUID(bytes=raw)}"


def simulated(machine: simulator.Machine) -> tuple[Device, ...]:
    """Return the devices of a simulated machine, in place of a GPU its MIG devices if any."""
    from pyvgpu.simulation import mig as mig_profiles
    from pyvgpu.simulation import simulator

    mig = simulator.in_mig_mode(machine)
    instances = simulator.mig_state(machine).instances
    found: list[Device] = []
    for index, gpu in enumerate(machine.devices):
        whole = Device(
            uuid=gpu.uuid,
            index=index,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            context_bytes=gpu.context_bytes,
            mig=index in mig,
            green_bytes=gpu.context_bytes * machine.law.green_context_percent // 100,
            uncounted_bytes=machine.law.uncounted_bytes,
        )
        own = [each for each in instances if each.gpu == index]
        most = max((each.sms for each in mig_profiles.profiles(gpu.model)), default=gpu.sm_count)
        parts = [
            dataclasses.replace(
                whole,
                uuid=each.uuid,
                index=_instance_index(index, number),
                name=f"{gpu.name} MIG {each.profile}",
                memory_bytes=each.memory_bytes,
                mig=False,
                instance=MigInstance(
                    gpu.uuid,
                    index,
                    number,
                    each.gpu_instance,
                    each.compute_instance,
                    _percent(each.sm_count, most),
                ),
            )
            for number, each in enumerate(own)
        ]
        found += parts or [whole]
    return tuple(found)


def _instance_index(gpu: int, number: int) -> int:
    return INSTANCE_INDICES * (gpu + 1) + number


def _percent(sms: int, of: int) -> int:
    """Return multiprocessors in percent, rounded down, but 1 at least."""
    return max(1, 100 * sms // of)


def installed(library: Path) -> tuple[Device, ...]:
    """Return the devices that NVML, the driver's own *library*, lists.

    In place of a GPU its MIG devices, if it has any.
    """
    import pynvml

    from pyvgpu import nvml

    started = False
    try:
        with nvml.session(library):
            started = True
            return tuple(
                found for index in range(pynvml.nvmlDeviceGetCount()) for found in _describe(index)
            )
    except (OSError, pynvml.NVMLError) as exc:
        if started:
            text = f"NVML in {library.parent} failed: {exc}"
        else:
            text = (
                f"the driver in {library.parent} does not start: {exc}; without a GPU, "
                "--simulate h100 gives a simulated one"
            )
        raise errors.UnavailableError(text) from exc


def select(devices: Sequence[Device], wanted: str | None) -> tuple[Device, ...]:
    """Return the devices that ``--device`` *wanted* allows; all of them if it is None.

    A GPU in MIG mode is none of them, but its MIG devices are.
    """
    if not devices:
        raise errors.UnavailableError(
            "the driver has no device; --simulate h100 gives a simulated one"
        )
    usable = tuple(device for device in devices if not device.mig)
    if wanted is None:
        if not usable:
            raise errors.UnavailableError(_mig_text(devices[0], "and so is every other device"))
        return usable
    for device in devices:
        if wanted in (device.place, device.uuid):
            if device.mig:
                others = ", ".join(other.place for other in usable) or "none"
                raise errors.UnavailableError(_mig_text(device, f"usable devices: {others}"))
            return (device,)
    known = ", ".join(f"{device.place} ({device.uuid})" for device in devices)
    parts = [
        device.place
        for device in devices
        if device.instance and wanted in (device.instance.parent, str(device.instance.gpu_index))
    ]
    if parts:
        raise errors.UsageError(
            f"--device {wanted!r}: the GPU is in MIG mode, so name one of its MIG devices: "
            f"{', '.join(parts)}, or the UUID of one: {known}"
        )
    text = (
        "must be one device, so use several runs" if "," in wanted else "there is no such device"
    )
    raise errors.UsageError(f"--device {wanted!r}: {text}; valid: {known}")


def _mig_text(device: Device, more: str) -> str:
    return (
        f"{device.label} is in MIG mode, {more}: it has no MIG devices; `nvidia-smi mig -i "
        f"{device.index} -lgip` lists the kinds, `nvidia-smi mig -i {device.index} -cgi ID -C` "
        f"makes one, or turn MIG off with `nvidia-smi -i {device.index} -mig 0` (root, and no "
        "program may use the device)"
    )


def _describe(index: int) -> Iterator[Device]:
    """Yield a GPU, or its MIG devices if it has any."""
    import pynvml

    from pyvgpu import nvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = nvml.is_in_mig_mode(handle)
    size = 0
    # In MIG mode the driver reports the sum of the instances to privileged processes only.
    with contextlib.suppress(*((pynvml.NVMLError,) if mig else ())):
        size = _bytes_for_programs(handle)
    whole = Device(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=size,
        context_bytes=CONTEXT_BYTES,
        mig=mig,
        green_bytes=GREEN_BYTES,
    )
    parts = tuple(nvml.mig_devices(handle)) if mig else ()
    if not parts:
        yield whole
    sms = nvml.most_multiprocessors(handle) if parts else 0
    for number, part in enumerate(parts):
        attributes = pynvml.nvmlDeviceGetAttributes_v2(part)
        own = attributes.multiprocessorCount
        yield dataclasses.replace(
            whole,
            uuid=pynvml.nvmlDeviceGetUUID(part),
            index=_instance_index(index, number),
            name=pynvml.nvmlDeviceGetName(part),
            memory_bytes=_bytes_for_programs(part),
            mig=False,
            instance=MigInstance(
                whole.uuid,
                index,
                number,
                nvml.number(pynvml.nvmlDeviceGetGpuInstanceId(part)),
                nvml.number(pynvml.nvmlDeviceGetComputeInstanceId(part)),
                _percent(own, max(sms, own)),
            ),
        )


def _bytes_for_programs(handle: c_void_p) -> int:
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return int(memory.total - memory.reserved)
