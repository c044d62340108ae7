# cython: language_level=3, annotation_typing=False, wraparound=False
"""What a ledger says of devices, from the bytes of it that were read.

Compiled by Cython with the types of words.pxd, and as good without, only slower. Numbers are of 64
bits, the lowest first, as the machines write them that have GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def at(raw: bytes, place: int) -> int:
    """Return the number that begins at a byte of *raw*."""
    found, bits = 0, 0
    for byte in range(place, place + 8):
        part = raw[byte]
        found |= part << bits
        bits += 8
    return found


def held(row: bytes, slots: Sequence[int], mask: int) -> int:
    """Return the sum of the numbers with these indexes in a *row*, of each the bits of *mask*."""
    total = 0
    for slot in slots:
        total += at(row, 8 * slot) & mask
    return total


def columns(raw: bytes, rows: int, size: int, places: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return of the first *rows* of *size* bytes each the numbers at these *places*."""
    return [tuple([at(raw, row * size + place) for place in places]) for row in range(rows)]
