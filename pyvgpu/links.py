"""What the dead of a region have shared and the living may still have open.

csrc/links.h says what the table is, and the shims keep it. This is for who only looks: it says
what the next process that clears up after the dead would leave charged, or a little more.
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
class Link:
    """One entry of the table; a word of 0 is nobody's."""

    word: int
    bytes: int

    @property
    def slot(self) -> int:
        """Whose it is; -1 if nobody's."""
        return (self.word & _SLOT_MASK) - 1

    @property
    def device(self) -> int:
        """Where the memory is, as an index into the quota."""
        return self.word >> _DEVICE_SHIFT & _DEVICE_MASK

    @property
    def key(self) -> int:
        """What an export and its imports have in common."""
        return self.word >> _HASH_SHIFT


def orphaned(
    links: Sequence[Link], alive: Collection[int], charged: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return by device what of the dead stays *charged*, which is by device and slot."""
    opened = {link.key for link in links if link.word & _IMPORT and link.slot in alive}
    left: dict[tuple[int, int], int] = {}
    for link in links:
        if not link.word & _EXPORT or link.slot in alive or link.slot < 0:
            continue
        # Only a shim can ask whether a descriptor is open.
        coming = alive and link.word & (_CARRIED | _UNTRACKED)
        if coming or link.key in opened:
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


def opened(
    links: Sequence[Link], devices: int, charged: Callable[[int, int], int]
) -> dict[int, tuple[int, ...]]:
    """Return, by slot, the bytes by device that it has open of other slots' exports.

    Of each exporting slot no more than it is *charged*, which is by slot and device: a process can
    write links of memory that does not exist.
    """
    exports = {link.key: link for link in links if link.word & _EXPORT and link.slot >= 0}
    sizes: dict[tuple[int, int, int], int] = {}  # by slot, exporting slot and device
    # One that opens the same twice has it once.
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
