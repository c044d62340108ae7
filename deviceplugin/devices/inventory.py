"""Inventory of the node's devices and their topology, read from NVML in an open session.

Facts that a driver does not report (an old one, a virtual machine) stay unknown rather than
guessed: a device without a NUMA node counts as near to none.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import quota, share
from pyvgpu.allocator import datatypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from ctypes import c_void_p

    from pyvgpu import device
    from pyvgpu.machine import mps_limits
    from pyvgpu.volumes import cdi

_PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: datatypes.LinkPath.SWITCH,
    pynvml.NVML_TOPOLOGY_SINGLE: datatypes.LinkPath.SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: datatypes.LinkPath.BRIDGE,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: datatypes.LinkPath.BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: datatypes.LinkPath.NUMA,
    pynvml.NVML_TOPOLOGY_SYSTEM: datatypes.LinkPath.SYSTEM,
}
_NUMA_WORDS = 16  # of 64 nodes each


@dataclasses.dataclass(frozen=True, slots=True)
class DriverVersions:
    """The driver's versions."""

    release: str = ""  # as NVML reports it, such as 550.163.01
    cuda: str = ""  # such as 12.4


@dataclasses.dataclass(frozen=True, slots=True)
class InventoryDevice:
    """A device, with facts that only NVML has."""

    device: device.Device
    minor: int | None  # of its node in /dev; None: not reported
    numa: int | None
    links: Mapping[str, datatypes.DeviceLink]  # by UUID of the other
    compute_class: str = ""
    compute_capability: str = ""  # such as 9.0; empty: not reported
    pcie_root: str = ""  # its host bridge, such as pci0000:00; empty: not known
    profiles: tuple[datatypes.MigProfile, ...] = ()  # if pods get MIG instances on it
    mps: mps_limits.DeviceFacts | None = None  # if MPS may divide it

    def fact(
        self,
        unhealthy: str = "",
        *,
        cordoned: bool = False,
        allocated_by: str = "",
        taken: tuple[str, ...] = (),
        mps: bool = False,
        reservable: int = 100,
    ) -> datatypes.NodeDevice:
        """Return the device in the allocator's form.

        *reservable* is for GPUs whose tenants the driver can suspend: not those with MIG or MPS.
        """
        if mps or self.profiles or self.device.mig or self.device.instance is not None:
            reservable = 100
        isolation = quota.Isolation.MPS if mps else quota.Isolation.QUOTA
        memory_bytes = share.usable_bytes(self.device, isolation)
        return datatypes.NodeDevice(
            uuid=self.device.uuid,
            index=self.device.index,
            memory_bytes=max(memory_bytes, 1),  # schedulers refuse one of 0 bytes
            model=self.device.name,
            compute_class=self.compute_class,
            numa=self.numa,
            links=self.links,
            unhealthy=unhealthy,
            cordoned=cordoned,
            allocated_by=allocated_by,
            # The hardware gives an instance its memory, however little was requested.
            least_bytes=1 if self.profiles else self.device.context_bytes + share.LEAST_ROOM_BYTES,
            profiles=self.profiles,
            taken=taken,
            mps=mps,
            reservable=100 if allocated_by else reservable,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Ends:
    """The active NVLinks of a device: their number by the PCI address of the remote end."""

    address: str  # the device's own
    links: Mapping[str, int]


def read(
    hardware: Sequence[device.Device],
    classes: Iterable[tuple[str, str]] = (),
    buses: Path = Path("/sys/bus/pci/devices"),
) -> tuple[InventoryDevice, ...]:
    """Return the facts about *hardware* from NVML, and from the kernel's folder *buses*.

    *classes* are parts of device names, ignoring case, and the class of such devices; the first
    match counts. A device that NVML does not find has no links.
    """
    rules = tuple(classes)
    handles = {one.uuid: handle for one in hardware if (handle := _handle(one)) is not None}
    ends = {uuid: _ends(handle) for uuid, handle in handles.items()}
    # MIG devices reach no other device.
    instances = {one.uuid for one in hardware if one.instance}
    return tuple(
        InventoryDevice(
            one,
            _minor(handles.get(one.uuid)),
            _numa(handles.get(one.uuid)),
            {
                other: datatypes.DeviceLink(
                    _path(handles[one.uuid], handles[other]),
                    nvlinks_between(ends[one.uuid], ends[other]),
                )
                for other in handles
                if one.uuid in handles and other != one.uuid and not {one.uuid, other} & instances
            },
            class_of(one.name, rules),
            _capability(handles.get(one.uuid)),
            pcie_root(ends[one.uuid].address, buses) if one.uuid in ends else "",
        )
        for one in hardware
    )


def nodes(seen: Iterable[InventoryDevice], found: Iterable[cdi.CdiNode]) -> dict[str, cdi.CdiNode]:
    """Return the node in /dev of each device, among those *found* there."""
    named = {node.name: node for node in found}
    return {
        one.device.uuid: named[f"nvidia{one.minor}"]
        for one in seen
        if f"nvidia{one.minor}" in named
    }


def class_of(name: str, rules: Iterable[tuple[str, str]]) -> str:
    """Return the class of a device called *name*."""
    return next((given for part, given in rules if part.lower() in name.lower()), "")


def nvlinks_between(one: Ends, other: Ends) -> int:
    """Return the number of NVLinks between two devices, direct or through a common switch."""
    direct = one.links.get(other.address, 0)
    switched = sum(
        min(count, other.links[end]) for end, count in one.links.items() if end in other.links
    )
    return max(direct, switched)


def cuda_version() -> str:
    """Return the newest CUDA version that the driver supports, such as 12.4; empty if unknown."""
    with contextlib.suppress(pynvml.NVMLError):
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def pcie_root(address: str, buses: Path) -> str:
    """Return the host bridge of the device with a PCI *address*; *buses*: /sys/bus/pci/devices."""
    domain, _, rest = address.partition(":")
    try:
        parts = (buses / f"{domain[-4:]}:{rest}").resolve(strict=True).parts
    except (OSError, ValueError):
        return ""
    return next((part for part in parts if part.startswith("pci") and ":" in part), "")


def _capability(handle: c_void_p | None) -> str:
    if handle is not None:
        with contextlib.suppress(pynvml.NVMLError):
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            return f"{major}.{minor}"
    return ""


def _handle(one: device.Device) -> c_void_p | None:
    """Return the handle of a device, of a MIG device that of its GPU."""
    uuid = one.uuid if one.instance is None else one.instance.parent
    with contextlib.suppress(pynvml.NVMLError):
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)  # type: ignore[no-any-return]
    return None


def _minor(handle: c_void_p | None) -> int | None:
    if handle is not None:
        with contextlib.suppress(pynvml.NVMLError):
            return int(pynvml.nvmlDeviceGetMinorNumber(handle))
    return None


def _numa(handle: c_void_p | None) -> int | None:
    """Return the one NUMA node whose memory is local; None if there is not exactly one."""
    if handle is None:
        return None
    try:
        words = pynvml.nvmlDeviceGetMemoryAffinity(
            handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
        )
    except pynvml.NVMLError:
        return None
    mask = sum(int(word) << (64 * at) for at, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def _path(one: c_void_p, other: c_void_p) -> datatypes.LinkPath:
    with contextlib.suppress(pynvml.NVMLError):
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
        return _PATHS.get(level, datatypes.LinkPath.SYSTEM)
    return datatypes.LinkPath.SYSTEM


def _ends(handle: c_void_p) -> Ends:
    found: dict[str, int] = {}
    address = ""
    with contextlib.suppress(pynvml.NVMLError):
        address = _address(pynvml.nvmlDeviceGetPciInfo(handle))
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(pynvml.NVMLError):
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED:
                end = _address(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
                found[end] = found.get(end, 0) + 1
    return Ends(address, found)


def _address(pci: object) -> str:
    text = pci.busId  # type: ignore[attr-defined]
    return (text.decode() if isinstance(text, bytes) else str(text)).lower()
