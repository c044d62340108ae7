"""Data types of the allocator: devices, allocated shares, requests of pods.

Sizes are in bytes, time in vcore: hundredths of one device's time, 100 is the whole.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE = quantity.WHOLE_DEVICE


class LinkPath(enum.IntEnum):
    """The path between two devices, the nearest first; the numbers are in node annotations."""

    SWITCH = 1  # one PCIe switch, or a board of several devices
    BRIDGE = 2  # several PCIe switches, one host bridge
    NUMA = 3  # host bridges of one NUMA node
    SYSTEM = 4  # the link between NUMA nodes


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceLink:
    """The connection of two devices."""

    path: LinkPath = LinkPath.SYSTEM
    nvlinks: int = 0  # active ones, direct or over an NVSwitch


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MigProfile:
    """A kind of GPU instance that a GPU can have, as its driver reports it."""

    name: str  # such as 1g.10gb
    id: int  # by which NVML creates an instance, of this GPU's model
    memory_bytes: int
    sms: int  # multiprocessors
    slices: int  # of compute
    size: int  # in memory slices
    most: int  # instances of it
    starts: tuple[int, ...]  # memory slices at which one may begin


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device, as the allocator sees it."""

    uuid: str
    index: int  # for display
    memory_bytes: int
    model: str = ""  # the driver's name for it
    compute_class: str = ""  # the administrator's name for devices of its kind
    numa: int | None = None
    links: Mapping[str, DeviceLink] = dataclasses.field(
        default_factory=dict, hash=False
    )  # by UUID
    unhealthy: str = ""  # why it is unhealthy and cannot be allocated; empty: it is healthy
    cordoned: bool = False  # running containers stay, new ones are not placed on it
    allocated_by: str = ""  # the other API that offers it; empty: none
    least_bytes: int = 1  # the minimum of a useful share
    # A GPU on which the agent creates an instance for each container: its MIG profiles.
    profiles: tuple[MigProfile, ...] = ()
    taken: tuple[str, ...] = ()  # placements that no container has, such as 1g.10gb@6
    mps: bool = False  # its shares are divided by an MPS daemon; others are not placed on it
    # Percent of its memory and time that shares may reserve together, from 100: above 100 the
    # agent suspends idle pods, so that those that are not suspended fit.
    reservable: int = 100

    @property
    def reservable_bytes(self) -> int:
        """The memory that all shares of it may reserve together."""
        return self.memory_bytes * self.reservable // 100

    @property
    def reservable_vcore(self) -> int:
        """The vcore that all shares of it may reserve together."""
        return WHOLE * self.reservable // 100

    @property
    def label(self) -> str:
        """The device's short name, if its node is clear."""
        return f"gpu{self.index}"

    @property
    def instance(self) -> bool:
        """Whether it is a MIG device."""
        return self.uuid.startswith(names.MIG_UUID_PREFIX)

    @property
    def state(self) -> str:
        """Its state for display: unhealthy, cordoned or well."""
        return "unhealthy" if self.unhealthy else "cordoned" if self.cordoned else "healthy"

    @property
    def why(self) -> str:
        """Why it is not available, for display: its fault or the other API; empty if neither."""
        return self.unhealthy or (f"allocated by {self.allocated_by}" if self.allocated_by else "")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeShare:
    """A share of one device; vcore 100 is the whole device, with all its memory."""

    uuid: str
    vcore: int
    vmemory: int  # bytes
    mig: str = ""  # placement of the container's own instance, such as 1g.10gb@6; empty: none

    @property
    def target(self) -> str:
        """The UUID of the device; of a MIG instance of its own with the placement."""
        return f"{self.uuid}/{self.mig}" if self.mig else self.uuid

    @property
    def whole(self) -> bool:
        """Whether it is a whole device."""
        return self.vcore == WHOLE

    def __post_init__(self) -> None:
        if not 1 <= self.vcore <= WHOLE:
            raise errors.DataError(f"share vcore={self.vcore}: must be from 1 to {WHOLE}")
        if not 1 <= self.vmemory <= quantity.MAXIMUM_BYTES:
            raise errors.DataError(
                f"share vmemory={self.vmemory}: must be from 1 to {quantity.MAXIMUM_BYTES} bytes"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """A share that is already allocated."""

    share: NodeShare
    holder: str  # for display, such as namespace/pod/container


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one node, and all shares allocated on them."""

    devices: tuple[NodeDevice, ...]
    held: tuple[Holding, ...] = ()

    def __post_init__(self) -> None:
        if len({device.uuid for device in self.devices}) != len(self.devices):
            raise errors.DataError("two devices of a node have the same UUID")


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerNeed:
    """The request of one container: the same share of each of *count* devices."""

    vcore: int  # of each device; 100: whole devices
    vmemory: int  # bytes of each device; whole devices come with all their memory
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.vcore <= WHOLE or self.vmemory < 0 or self.count < 1:
            raise errors.DataError(f"{self}: is not valid")
        if not self.whole and not self.vmemory:
            raise errors.DataError(f"{self}: a share must have some memory")

    @property
    def whole(self) -> bool:
        """Whether whole devices are requested."""
        return self.vcore == WHOLE


class ContainerKind(enum.Enum):
    """When a container runs."""

    APP = "app"
    INIT = "init"  # before all apps, and after the init containers before it
    SIDECAR = "sidecar"  # a native one: from its place among the init containers to the end


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A container that requests devices."""

    name: str
    need: ContainerNeed
    kind: ContainerKind = ContainerKind.APP


class Packing(enum.Enum):
    """Which of several devices with room is preferred for a share."""

    BINPACK = "binpack"  # the one with least room, so that others stay whole
    SPREAD = "spread"  # the one with most room


class Nearness(enum.Enum):
    """Topology requirement for several devices of one container."""

    PREFERRED = "preferred"  # as near to each other as possible
    NVLINK = "nvlink"  # all linked to each other by NVLink, or no placement
    NUMA = "numa"  # all of one NUMA node, or no placement


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """Device selector; an empty set matches every device."""

    uuids: frozenset[str] = frozenset()
    not_uuids: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()  # parts of a device's name, in any case
    not_models: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    numa: int | None = None
    least_memory: int = 0  # bytes of the whole device
    instances: bool = True  # MIG devices, too
    # A MIG profile of which each container gets an instance of its own; *: the smallest; empty:
    # none is wanted.
    mig: str = ""
    mps: bool = False  # devices that MPS divides, and no others


ANY = Selector()  # matches every device


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """Containers that are placed together or not at all, in the order of the pod's spec.

    Init containers and native sidecars come first, in the order of kubelet. If their order is not
    known, sidecars go before init containers: then no peak is underestimated.
    """

    containers: tuple[Container, ...]
    packing: Packing = Packing.BINPACK
    nearness: Nearness = Nearness.PREFERRED
    selector: Selector = ANY

    def __post_init__(self) -> None:
        if len({container.name for container in self.containers}) != len(self.containers):
            raise errors.DataError("two containers of a pod have the same name")
        # A process sees one MIG device, so several for one container would be of no use.
        if self.selector.instances and any(each.need.count > 1 for each in self.containers):
            selector = dataclasses.replace(self.selector, instances=False)
            object.__setattr__(self, "selector", selector)
