"""What is decided on and what is decided: devices, what is held of them, what a pod asks.

Sizes are bytes, times are vcore: hundredths of one device's time, 100 the whole.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE = quantity.WHOLE_DEVICE


class Path(enum.IntEnum):
    """The way between two devices, the nearest first; the numbers are in a node's annotation."""

    SWITCH = 1  # one PCIe switch, or a board of several devices
    BRIDGE = 2  # several PCIe switches, one host bridge
    NUMA = 3  # host bridges of one NUMA node
    SYSTEM = 4  # the link between NUMA nodes


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """How one device reaches another."""

    path: Path = Path.SYSTEM
    nvlinks: int = 0  # active ones, directly or over a switch of theirs


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device as an allocator sees it."""

    uuid: str
    index: int  # for display
    memory_bytes: int
    model: str = ""  # its name, as the driver says it
    compute_class: str = ""  # what the administrator calls devices of its kind
    numa: int | None = None
    links: Mapping[str, Link] = dataclasses.field(default_factory=dict, hash=False)  # by UUID
    sick: str = ""  # why it can be given to nobody; empty: it is well
    cordoned: bool = False  # what runs stays, nothing new comes
    door: str = ""  # who else gives it out; empty: nobody
    least_bytes: int = 1  # below which a share of it is of no use to anybody

    @property
    def label(self) -> str:
        """How the device is called where its node is known."""
        return f"gpu{self.index}"

    @property
    def state(self) -> str:
        """How it stands, in a word that people are shown: sick, cordoned or well."""
        return "sick" if self.sick else "cordoned" if self.cordoned else "well"

    @property
    def why(self) -> str:
        """What is wrong with it, or who else gives it out, for people; empty if neither."""
        return self.sick or (f"given out by {self.door}" if self.door else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A part of one device; vcore 100 is the whole of it, with all its memory."""

    uuid: str
    vcore: int
    vmemory: int  # bytes

    def __post_init__(self) -> None:
        if not 1 <= self.vcore <= WHOLE:
            raise errors.DataError(f"share vcore={self.vcore}: must be from 1 to {WHOLE}")
        if not 1 <= self.vmemory <= quantity.MAXIMUM_BYTES:
            raise errors.DataError(
                f"share vmemory={self.vmemory}: must be from 1 to {quantity.MAXIMUM_BYTES} bytes"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What somebody has of a device already."""

    share: Share
    holder: str  # for people, such as namespace/pod/container


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """The devices of one node, and everything that is promised of them."""

    devices: tuple[Device, ...]
    held: tuple[Holding, ...] = ()

    def __post_init__(self) -> None:
        if len({device.uuid for device in self.devices}) != len(self.devices):
            raise errors.DataError("two devices of a node have the same UUID")


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What one container asks: *count* devices, of each the same."""

    vcore: int  # of each device; 100: whole devices
    vmemory: int  # bytes of each device; of whole ones all is given, whatever this says
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.vcore <= WHOLE or self.vmemory < 0 or self.count < 1:
            raise errors.DataError(f"{self}: makes no sense")
        if not self.whole and not self.vmemory:
            raise errors.DataError(f"{self}: a share must have some memory")

    @property
    def whole(self) -> bool:
        """Whether whole devices are asked for."""
        return self.vcore == WHOLE


class Kind(enum.Enum):
    """When a container runs."""

    APP = "app"
    INIT = "init"  # before all apps, and after the init containers before it
    SIDECAR = "sidecar"  # a native one: from its place among the init containers to the end


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A container that asks for devices."""

    name: str
    need: Need
    kind: Kind = Kind.APP


class Packing(enum.Enum):
    """Which of several devices with room a share gets."""

    BINPACK = "binpack"  # the one with least room, so that others stay whole
    SPREAD = "spread"  # the one with most


class Nearness(enum.Enum):
    """What is wanted of several devices that one container gets."""

    PREFERRED = "preferred"  # as near to each other as there are
    NVLINK = "nvlink"  # each linked to each by NVLink, or none at all
    NUMA = "numa"  # all of one NUMA node, or none at all


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """Which devices will do; an empty set of a kind allows all of that kind."""

    uuids: frozenset[str] = frozenset()
    not_uuids: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()  # parts of a device's name, in any case
    not_models: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    numa: int | None = None
    least_memory: int = 0  # bytes of the whole device


ANY = Selector()  # every device will do


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """Containers that are placed together or not at all, in the order of the pod's spec.

    Init containers and native sidecars come first, as kubelet starts them. Where their order is
    not known, the sidecars go before the init containers: then nothing is counted too low.
    """

    containers: tuple[Container, ...]
    packing: Packing = Packing.BINPACK
    nearness: Nearness = Nearness.PREFERRED
    selector: Selector = ANY

    def __post_init__(self) -> None:
        if len({container.name for container in self.containers}) != len(self.containers):
            raise errors.DataError("two containers of a pod have the same name")
