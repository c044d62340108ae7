"""The device-plugin ids of vcore and vmemory that kubelet allocates, and which are unhealthy.

An id only counts; it stands for no device: any hundred ids of vcore are a whole device, and a
grant records its devices. So that a list of 16 devices with 288 GiB each stays below 512 KiB, ids
are short: ``c0`` to ``c1599`` for vcore, ``m0`` to ``m18431`` for vmemory. Each resource has its
own ids, since a node whose profile was changed has containers of both.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class ResourceKind(enum.Enum):
    """The kind of a resource."""

    VCORE = "vcore"
    VMEMORY = "vmemory"
    TIME_SLICE = "time-slice"  # a whole device without limits: see plugin/time_slices.py
    CONTROL = "control"  # the nodes of all devices, for the agent: see control.py

    # Members are unique, so identity suffices; Enum hashes the name, in Python, and a start of a
    # container looks up hundreds.
    __hash__ = object.__hash__


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """An extended resource: its name, and the prefix of its ids."""

    kind: ResourceKind
    name: str  # of the resource, in pods
    beginning: str  # of each id

    def has(self, one: str) -> bool:
        """Return whether an id belongs to this resource, not to the other profile's."""
        return one.startswith(self.beginning)

    def ids(self, count: int) -> tuple[str, ...]:
        """Return the first *count* ids."""
        return tuple(f"{self.beginning}{number}" for number in range(count))


OURS = (
    Resource(ResourceKind.VCORE, names.VCORE_RESOURCE, "c"),
    Resource(ResourceKind.VMEMORY, names.VMEMORY_RESOURCE, "m"),
)
GAIA = (  # gpu-manager's names
    Resource(ResourceKind.VCORE, names.GAIA_VCORE_RESOURCE, "v"),
    Resource(ResourceKind.VMEMORY, names.GAIA_VMEMORY_RESOURCE, "w"),
)
EITHER = (*OURS, *GAIA)  # running containers may have either, whichever is offered now
CONTROL = Resource(ResourceKind.CONTROL, names.CONTROL_RESOURCE, "n")


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """The capacity of a resource on one device, and the ids allocated of it."""

    size: int  # ids of the whole device
    given: frozenset[str]  # ids of the grants on it
    closed: bool = False  # it takes no new containers
    unhealthy: bool = False  # nor do the containers on it work
    # Ids that are free, but must not be allocated: the rest of a device that is granted whole, and
    # as many as grants on it hold of the other profile's resource.
    taken: int = 0
    numa: int | None = None  # the device's NUMA node, if known


# Kubelet takes messages of 4 MiB, and an id with its health and NUMA node has up to 32 bytes.
MOST_IDS = (4 << 20) // 32


def too_many(memory_bytes: Sequence[int], unit: int) -> str:
    """Return why kubelet cannot take the vmemory ids of devices with these sizes; empty if it can.

    *unit* is the bytes of one vmemory.
    """
    if sum(size // unit for size in memory_bytes) <= MOST_IDS:
        return ""
    least = -(-sum(memory_bytes) // MOST_IDS)
    valid = 1 << (least - 1).bit_length()
    return (
        f"--memory-unit {unit >> 20}Mi: too small for {len(memory_bytes)} devices with "
        f"{sum(memory_bytes) >> 30} GiB: kubelet takes at most {MOST_IDS} units; valid would be "
        f"{valid >> 20}Mi, for agents and webhook alike"
    )


def order(name: str) -> int:
    """Return the number that an id ends in, by which ids are sorted; -1 if it has none."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1


def unhealthy(
    everything: Sequence[str],
    capacities: Iterable[ResourceCapacity],
    held: frozenset[str],
    before: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the ids that kubelet must not allocate.

    For an unhealthy device: the ids of its grants, and as many free ones as make up all of its
    size; for a closed device: only those free ones. Never an id that another device's grants hold:
    *held* are all allocated ids. An id that grants on two devices hold, as when kubelet has lost
    its checkpoint, counts once for kubelet, and another free one is withdrawn in its place. Ids
    unhealthy *before* stay so; further ones are taken from the end, since the first are allocated
    first.
    """
    own: set[str] = set()
    there = tuple(capacities)
    given = [capacity.given for capacity in there]
    wanted = sum(map(len, given)) - len(frozenset[str]().union(*given))
    for capacity in there:
        if capacity.unhealthy:
            own |= capacity.given
        if capacity.unhealthy or capacity.closed:
            wanted += capacity.size - len(capacity.given)
        else:
            wanted += capacity.taken
    if not wanted:
        return frozenset(own)
    free = [each for each in reversed(everything) if each not in held and each not in own]
    free.sort(key=lambda each: each not in before)  # stable: the last ones first
    return frozenset(own | set(free[:wanted]))


def numa_nodes(
    everything: Sequence[str], capacities: Sequence[ResourceCapacity]
) -> Mapping[str, int]:
    """Return the NUMA node of each id, for kubelet's Topology Manager.

    An id in use has that of its device. Of the free ids as many have a NUMA node as there is free
    capacity on its devices: first those at the place of a device in *everything*, which the agent
    also recommends to kubelet first. Empty if all devices are on one NUMA node, or that of any is
    unknown.
    """
    if len({capacity.numa for capacity in capacities}) < 2 or any(
        capacity.numa is None for capacity in capacities
    ):
        return {}
    found = {each: int(capacity.numa or 0) for capacity in capacities for each in capacity.given}
    free: dict[str, int] = {}
    spare: list[str] = []
    missing: list[int] = []
    first = 0
    for capacity in capacities:
        numa, room = int(capacity.numa or 0), max(capacity.size - len(capacity.given), 0)
        place = [each for each in everything[first : first + capacity.size] if each not in found]
        free |= dict.fromkeys(place[:room], numa)
        spare += place[room:]
        missing += [numa] * (room - len(place))
        first += capacity.size
    return found | free | dict(zip(spare, missing, strict=False))


def preferred(
    available: Iterable[str], must: Sequence[str], size: int, order_of: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the ids that kubelet should take: the first in *order_of*, then the others.

    Of the others the lowest, so that the highest stay free to be withdrawn.
    """
    left = set(available).difference(must)
    found = list(must)
    for name in order_of:
        if len(found) >= size:
            break
        if name in left:
            left.remove(name)
            found.append(name)
    if len(found) < size:
        found += sorted(left, key=order)[: size - len(found)]
    return tuple(found)
