"""Memory shared between processes: exports of dead processes that live ones may have open.

csrc/core/shared_memory.h describes the table, which the shims maintain. This is a read-only view:
it computes what the next process that reaps the dead would leave charged, or slightly more.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu._region import ffi

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_SLOT_MASK: int = ffi.integer_const("LINK_SLOT_MASK")
_DEVICE_SHIFT: int = ffi.integer_const("LINK_DEVICE_SHIFT")
_DEVICE_MASK: int = ffi.integer_const("LINK_DEVICE_MASK")
_HASH_SHIFT: int = ffi.integer_const("LINK_HASH_SHIFT")
_EXPORT, _IMPORT, _CARRIED, _UNTRACKED = (
    ffi.integer_const(f"LINK_{name}") for name in ("EXPORT", "IMPORT", "CARRIED", "UNTRACKED")
)


@dataclasses.dataclass(frozen=True, slots=True)
class SharedEntry:
    """One entry of the table; it is free if its word is 0."""

    word: int
    bytes: int

    @property
    def slot(self) -> int:
        """The slot of its owner; -1 if the entry is free."""
        return (self.word & _SLOT_MASK) - 1

    @property
    def device(self) -> int:
        """The device of the memory, as an index into the quota."""
        return self.word >> _DEVICE_SHIFT & _DEVICE_MASK

    @property
    def key(self) -> int:
        """The key that an export and its imports have in common."""
        return self.word >> _HASH_SHIFT


def orphaned(
    links: Sequence[SharedEntry], alive: Collection[int], charged: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return, by device, the bytes of dead processes that stay *charged* (by device and slot)."""
    opened = {link.key for link in links if link.word & _IMPORT and link.slot in alive}
    left: dict[tuple[int, int], int] = {}
    for link in links:
        if not link.word & _EXPORT or link.slot in alive or link.slot < 0:
            continue
        # Only a shim can find out whether a descriptor is open: assume that it is.
        may_open = alive and link.word & (_CARRIED | _UNTRACKED)
        if may_open or link.key in opened:
            place = link.device, link.slot
            left[place] = left.get(place, 0) + link.bytes
    return tuple(
        sum(
            min(held, row[slot])
            for (on, slot), held in left.items()
            if on == device and slot < len(row)
        )
        for device, row in enumerate(charged)
    )


def exporters(links: Sequence[SharedEntry]) -> frozenset[int]:
    """Return the slots that have exports."""
    return frozenset(link.slot for link in links if link.word & _EXPORT and link.slot >= 0)


def opened(
    links: Sequence[SharedEntry], devices: int, charged: Callable[[int, int], int]
) -> dict[int, tuple[int, ...]]:
    """Return, by slot and device, the bytes of other slots' exports that the slot has open.

    Limited for each exporting slot to its *charged* bytes (by slot and device): a process can
    write links of memory that does not exist.
    """
    exports = {link.key: link for link in links if link.word & _EXPORT and link.slot >= 0}
    sizes: dict[tuple[int, int, int], int] = {}  # by slot, exporting slot and device
    # A slot that opens the same export twice counts once.
    for slot, key in {(link.slot, link.key) for link in links if link.word & _IMPORT}:
        export = exports.get(key)
        if export is not None and export.slot != slot and export.device < devices:
            place = slot, export.slot, export.device
            sizes[place] = sizes.get(place, 0) + export.bytes
    found: dict[int, list[int]] = {}
    for (slot, owner, device), size in sizes.items():
        row = found.setdefault(slot, [0] * devices)
        row[device] += min(size, charged(owner, device))
    return {slot: tuple(row) for slot, row in found.items()}
