"""The topology of a node's devices, as a text tree in gpu-manager's format; pure.

    ROOT:1
    |---PHB (aval: 1, pids: [], usedMemory: 0, totalMemory: 2, allocatableCores: 0, ...)
    |   |---GPU0 (pids: [], usedMemory: 0, totalMemory: 1, allocatableCores: 70, ...)
    |   |---GPU1 (...)

Each device is below the nearest connection that it shares with others; ``aval`` counts devices
without allocated vcore. An inner line has the sums of its devices, except for the allocatable
amounts, which are 0 there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import quantity
from pyvgpu.allocator import datatypes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAMES = {
    datatypes.LinkPath.SWITCH: "PIX",
    datatypes.LinkPath.BRIDGE: "PHB",
    datatypes.LinkPath.NUMA: "CPU",
    datatypes.LinkPath.SYSTEM: "SYS",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A device, with its usage and free capacity."""

    device: datatypes.NodeDevice
    pids: tuple[int, ...] = ()
    used_bytes: int = 0
    free_vcore: int = quantity.WHOLE_DEVICE
    free_bytes: int = 0

    @property
    def leaves(self) -> list[Leaf]:
        """The devices below: itself."""
        return [self]

    @property
    def line(self) -> str:
        """Its line in the text."""
        return f"GPU{self.device.index} ({_sums(self.leaves, self.free_vcore, self.free_bytes)})"


@dataclasses.dataclass(slots=True)
class _Group:
    """Devices with a common connection."""

    path: datatypes.LinkPath
    members: set[str]  # UUIDs of devices
    children: list[_Group | Leaf] = dataclasses.field(default_factory=list)

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for child in self.children for leaf in child.leaves]

    @property
    def line(self) -> str:
        below = self.leaves
        return f"{_NAMES[self.path]} (aval: {_free(below)}, {_sums(below, 0, 0)})"


def text(leaves: Sequence[Leaf]) -> str:
    """Return the graph of these devices."""
    lines = [f"ROOT:{_free(leaves)}"]
    for top in sorted(_tree(leaves), key=_place):
        lines += _lines(top, 0)
    return "\n".join(lines) + "\n"


def _tree(leaves: Sequence[Leaf]) -> list[_Group | Leaf]:
    """Return the nodes below the root: each device below its nearest connection."""
    tops: list[_Group | Leaf] = list(leaves)
    for path in datatypes.LinkPath:
        groups = _groups(leaves, path)
        for group in groups:
            group.children = [top for top in tops if _uuids(top) & group.members]
            taken = {id(child) for child in group.children}
            tops = [top for top in tops if id(top) not in taken]
        tops += groups
    return tops


def _groups(leaves: Sequence[Leaf], path: datatypes.LinkPath) -> list[_Group]:
    """Return the sets of devices that are connected by *path*."""
    found: list[_Group] = []
    for at, one in enumerate(leaves):
        for other in leaves[at + 1 :]:
            link = one.device.links.get(other.device.uuid, datatypes.DeviceLink())
            if link.path is not path:
                continue
            both = {one.device.uuid, other.device.uuid}
            for group in found:
                if group.members & both:
                    group.members |= both
                    break
            else:
                found.append(_Group(path, both))
    return found


def _uuids(it: _Group | Leaf) -> set[str]:
    return {leaf.device.uuid for leaf in it.leaves}


def _place(it: _Group | Leaf) -> int:
    return min(leaf.device.index for leaf in it.leaves)


def _lines(it: _Group | Leaf, depth: int) -> Iterator[str]:
    yield "|   " * depth + "|---" + it.line
    if isinstance(it, _Group):
        for child in sorted(it.children, key=_place):
            yield from _lines(child, depth + 1)


def _free(leaves: Sequence[Leaf]) -> int:
    return sum(leave.free_vcore == quantity.WHOLE_DEVICE for leave in leaves)


def _sums(leaves: Sequence[Leaf], vcore: int, size: int) -> str:
    pids = " ".join(str(pid) for leave in leaves for pid in leave.pids)
    used = sum(leave.used_bytes for leave in leaves)
    total = sum(leave.device.memory_bytes for leave in leaves)
    return (
        f"pids: [{pids}], usedMemory: {used}, totalMemory: {total}, "
        f"allocatableCores: {vcore}, allocatableMemory: {size}"
    )
