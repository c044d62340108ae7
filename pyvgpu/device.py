"""The devices of a driver: discovery and selection."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyvgpu.simulation import simulator

CONTEXT_BYTES = 640 << 20  # reserve for a context on a GPU without a measurement
GREEN_BYTES = 64 << 20  # for a green context
_PREFIX = "GPU-"


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One physical (or simulated) GPU, known by its UUID."""

    uuid: str  # as NVML writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
    index: int  # for display only
    name: str
    memory_bytes: int  # 0 in MIG mode, if NVML does not report it
    context_bytes: int  # reserve for one context
    mig: bool = False  # in MIG mode, in which it cannot be used as a whole
    green_bytes: int = 0  # reserve for a green context
    uncounted_bytes: int = 0  # used by each process with a context, but not attributed by NVML

    def __post_init__(self) -> None:
        uuid_bytes(self.uuid)

    @property
    def label(self) -> str:
        """The device's name in messages."""
        return f"device {self.index} ({self.name})"


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a device's UUID."""
    try:
        if not text.startswith(_PREFIX):
            raise ValueError(text)
        return uuid.UUID(text.removeprefix(_PREFIX)).bytes
    except ValueError as exc:
        raise errors.DataError(
            f"device UUID {text!r}: must read {_PREFIX}xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
        ) from exc


def uuid_text(raw: bytes) -> str:
    """Return 16 bytes as NVML writes a device's UUID."""
    return f"{_PREFIX}{uuid.UUID(bytes=raw)}"


def simulated(machine: simulator.Machine) -> tuple[Device, ...]:
    """Return the devices of a simulated machine."""
    from pyvgpu.simulation import simulator

    mig = simulator.in_mig_mode(machine)
    return tuple(
        Device(
            uuid=found.uuid,
            index=index,
            name=found.name,
            memory_bytes=found.memory_bytes,
            context_bytes=found.context_bytes,
            mig=index in mig,
            green_bytes=found.context_bytes * machine.law.green_context_percent // 100,
            uncounted_bytes=machine.law.uncounted_bytes,
        )
        for index, found in enumerate(machine.devices)
    )


def installed(library: Path) -> tuple[Device, ...]:
    """Return the devices that NVML, the driver's own *library*, lists."""
    import pynvml

    from pyvgpu import nvml

    started = False
    try:
        with nvml.session(library):
            started = True
            return tuple(_describe(index) for index in range(pynvml.nvmlDeviceGetCount()))
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

    A device in MIG mode is none of them.
    """
    if not devices:
        raise errors.UnavailableError(
            "the driver has no device; --simulate h100 gives a simulated one"
        )
    whole = tuple(device for device in devices if not device.mig)
    if wanted is None:
        if not whole:
            raise errors.UnavailableError(_mig_text(devices[0], "and so is every other device"))
        return whole
    for device in devices:
        if wanted in (str(device.index), device.uuid):
            if device.mig:
                others = ", ".join(str(device.index) for device in whole) or "none"
                more = f"devices in whole-GPU mode: {others}"
                raise errors.UnavailableError(_mig_text(device, more))
            return (device,)
    known = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
    raise errors.UsageError(f"--device {wanted!r}: there is no such device; valid: {known}")


def _mig_text(device: Device, more: str) -> str:
    return (
        f"{device.label} is in MIG mode, {more}: a device in MIG mode cannot be divided by "
        f"pyvgpu; turn MIG off with `nvidia-smi -i {device.index} -mig 0` (root, and no program "
        "may use the device)"
    )


def _describe(index: int) -> Device:
    import pynvml

    from pyvgpu import nvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = nvml.is_in_mig_mode(handle)
    size = 0
    # In MIG mode the driver reports the sum of the instances to privileged processes only.
    with contextlib.suppress(*((pynvml.NVMLError,) if mig else ())):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        size = memory.total - memory.reserved
    return Device(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=size,
        context_bytes=CONTEXT_BYTES,
        mig=mig,
        green_bytes=GREEN_BYTES,
    )
