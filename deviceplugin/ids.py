"""The ids by which kubelet counts, and which of them are out of order.

An id is a counter and no place: any hundred of vcore's are a whole device, and which device a
container has stands in its grant. So that a list of 16 devices with 288 GiB each stays below 512
KiB, an id is short: ``c0`` to ``c1599`` for vcore, ``m0`` to ``m18431`` for vmemory. Each resource
has its own, since a node whose profile was changed has containers of both.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Kind(enum.Enum):
    """What is counted."""

    VCORE = "vcore"
    VMEMORY = "vmemory"
    CONTROL = "control"  # the nodes of all devices, for the agent: see control.py


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """How kubelet calls what is counted."""

    kind: Kind
    name: str  # of the resource, in pods
    beginning: str  # of each id

    def has(self, one: str) -> bool:
        """Tell whether an id is of this resource, not of another that counts the same."""
        return one.startswith(self.beginning)

    def ids(self, count: int) -> tuple[str, ...]:
        """Return the first *count* ids."""
        return tuple(f"{self.beginning}{number}" for number in range(count))


OURS = (
    Resource(Kind.VCORE, names.VCORE_RESOURCE, "c"),
    Resource(Kind.VMEMORY, names.VMEMORY_RESOURCE, "m"),
)
GAIA = (  # as gpu-manager calls them
    Resource(Kind.VCORE, names.GAIA_VCORE_RESOURCE, "v"),
    Resource(Kind.VMEMORY, names.GAIA_VMEMORY_RESOURCE, "w"),
)
EITHER = (*OURS, *GAIA)  # what containers have that run, whichever of both is offered now
CONTROL = Resource(Kind.CONTROL, names.CONTROL_RESOURCE, "n")


@dataclasses.dataclass(frozen=True, slots=True)
class Stand:
    """What there is of a resource on one device, and what of it is given out."""

    size: int  # ids that the device stands for
    given: frozenset[str]  # ids of those grants that are on it
    closed: bool = False  # nothing new is to come onto it
    sick: bool = False  # nor does what is on it work
    # Ids that nobody holds, and that nobody may have: all of a whole device, and those that stand
    # for what is held by ids of another resource that counts the same.
    taken: int = 0


def order(name: str) -> int:
    """Return the number that an id ends in, by which ids are sorted; -1 if it has none."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1


def unhealthy(
    everything: Sequence[str],
    stands: Iterable[Stand],
    held: frozenset[str],
    before: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the ids that are not to be counted on.

    Of a device that is sick those of its own grants, and so many that nobody has that together
    they are all of it; of one that only nothing new shall come onto, the latter alone. Never one
    that another device's grants hold: *held* are all that are given out. An id that grants of two
    devices hold, as where kubelet has lost its checkpoint, counts once for kubelet, and another
    free one is closed in its place. Those that were out of
    order *before* stay so, else the last ones are taken, since the first are given out first.
    """
    own: set[str] = set()
    there = tuple(stands)
    given = [stand.given for stand in there]
    wanted = sum(map(len, given)) - len(frozenset[str]().union(*given))
    for stand in there:
        if stand.sick:
            own |= stand.given
        if stand.sick or stand.closed:
            wanted += stand.size - len(stand.given)
        else:
            wanted += stand.taken
    if not wanted:
        return frozenset(own)
    free = [each for each in reversed(everything) if each not in held and each not in own]
    free.sort(key=lambda each: each not in before)  # stable: the last ones first
    return frozenset(own | set(free[:wanted]))


def preferred(
    available: Iterable[str], must: Sequence[str], size: int, order_of: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return which ids kubelet shall take: those that come first in *order_of*, then the others.

    Of the others the first, so that the last are free to be closed.
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
