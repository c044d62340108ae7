# cython: language_level=3, annotation_typing=False, wraparound=False
"""Decode the numbers in the bytes of a ledger.

Compiled by Cython with the types of words.pxd; it also works uncompiled, only slower. Numbers are
64-bit little-endian, the byte order of all machines with GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def at(raw: bytes, place: int) -> int:
    """Return the number at an offset in *raw*."""
    found, bits = 0, 0
    for byte in range(place, place + 8):
        part = raw[byte]
        found |= part << bits
        bits += 8
    return found


def held(row: bytes, slots: Sequence[int], mask: int) -> int:
    """Return the sum of the numbers at these indexes of a *row*, each masked by *mask*."""
    total = 0
    for slot in slots:
        total += at(row, 8 * slot) & mask
    return total


def columns(raw: bytes, rows: int, size: int, places: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the numbers at the offsets *places* of each of *rows* rows of *size* bytes."""
    return [tuple([at(raw, row * size + place) for place in places]) for row in range(rows)]
