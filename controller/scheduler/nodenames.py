# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
"""Look up and write thousands of node names directly in JSON text.

Compiled by Cython with the types of nodenames.pxd; works without, only slower. A *text* is the
content of a JSON list of names, without the brackets. It is plain if it is what Go writes for
names of nodes: printable ASCII without backslashes. Only plain text is searched here.

The hash table uses open addressing, with at least twice as many slots as names. A slot holds part
of its name's hash, so that most other names are skipped without comparing their characters, which
are stored one after the other.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST_PLACES = 1024
_LEAST_BYTES = 16384
_MOST_BYTES = (1 << 31) - 1  # of a text, and of all names in a table
_MOST_CODES = 256
_FACTOR = 0x9E3779B97F4A7C15  # of the hash: odd, with well-mixed bits
_WORD, _LOW = (1 << 64) - 1, (1 << 32) - 1
_ENDLESS, _FEWER = "a name has no end", "fewer codes than names"
_QUOTE, _COMMA, _SPACE, _BACKSLASH, _LAST = b'", \\~'


def count(text: bytes) -> int:
    """Return the number of names in a text; -1 if it is not plain, or no list of names."""
    size = len(text)
    at = names = 0
    if size > _MOST_BYTES or not _is_plain(text, size):
        return -1
    while at < size and text[at] == _SPACE:
        at += 1
    if at == size:
        return 0
    while True:
        at = _skip(text, at, size, _QUOTE)
        if at < 0:
            return -1
        while at < size and text[at] != _QUOTE:
            at += 1
        if at == size:
            return -1
        names += 1
        at += 1
        after = _skip(text, at, size, _COMMA)
        if after < 0:
            while at < size and text[at] == _SPACE:
                at += 1
            return names if at == size else -1
        at = after


def _is_plain(text: bytes, size: int) -> bool:
    odd = 0
    for at in range(size):  # no early exit, so that the compiler vectorizes
        letter = text[at]
        odd |= (letter < _SPACE) | (letter > _LAST) | (letter == _BACKSLASH)
    return odd == 0


def _skip(text: bytes, at: int, size: int, letter: int) -> int:
    """Return the index after *letter*, which spaces may precede; -1 if it is not there."""
    while at < size and text[at] == _SPACE:
        at += 1
    return at + 1 if at < size and text[at] == letter else -1


def _end(text: bytes, at: int, size: int) -> int:
    """Return the index of the quote that ends a name; ValueError if there is none."""
    while at < size and text[at] != _QUOTE:
        at += 1
    if at == size:
        raise ValueError(_ENDLESS)
    return at


def write(
    text: bytes, found: bytes | bytearray, forms: Mapping[int, tuple[bytes, bytes]]
) -> bytes:
    """Return each name of a plain text in quotes, between the two texts in *forms* of its code.

    *found* has the code of each. Names whose code has no form are left out.
    """
    pieces = bytearray()
    starts, middles, ends = (array.array("i", [-1]) * _MOST_CODES for _ in range(3))
    for code, (before, behind) in forms.items():
        starts[code] = len(pieces)
        pieces += before
        middles[code] = len(pieces)
        pieces += behind
        ends[code] = len(pieces)
    out = bytearray(_written(text, found, starts, ends))
    _write(text, found, bytes(pieces), starts, middles, ends, out)
    return bytes(out)


def _written(
    text: bytes,
    found: bytes | bytearray,
    starts: array.array[int],
    ends: array.array[int],
) -> int:
    """Return how many bytes _write writes."""
    size, at, number, total = len(text), 0, 0, 0
    while True:
        first = _skip(text, at, size, _QUOTE)
        if first < 0:
            return total
        at = _end(text, first, size)
        if number == len(found):
            raise ValueError(_FEWER)
        code = found[number]
        number += 1
        if starts[code] >= 0:
            total += at - first + 2 + ends[code] - starts[code]
        at += 1
        first = _skip(text, at, size, _COMMA)
        at = max(first, at)


def _write(
    text: bytes,
    found: bytes | bytearray,
    pieces: bytes,
    starts: array.array[int],
    middles: array.array[int],
    ends: array.array[int],
    out: bytearray,
) -> None:
    size, at, number, to = len(text), 0, 0, 0
    while True:
        first = _skip(text, at, size, _QUOTE)
        if first < 0:
            return
        at = _end(text, first, size)
        code = found[number]
        number += 1
        if starts[code] >= 0:
            to = _copy(pieces, starts[code], middles[code], out, to)
            to = _copy(text, first - 1, at + 1, out, to)
            to = _copy(pieces, middles[code], ends[code], out, to)
        at += 1
        first = _skip(text, at, size, _COMMA)
        at = max(first, at)


def _copy(source: bytes, first: int, end: int, out: bytearray, to: int) -> int:
    for at in range(first, end):
        out[to] = source[at]
        to += 1
    return to


class NameTable:
    """A hash table from names, as written in a text, to numbers."""

    def __init__(self) -> None:
        self._letters = bytearray(_LEAST_BYTES)
        self._used = 0  # bytes of _letters
        self._starts = array.array("I", bytes(4 * _LEAST_PLACES // 2))  # by name
        self._sizes = array.array("I", bytes(4 * _LEAST_PLACES // 2))
        self._numbers = array.array("I", bytes(4 * _LEAST_PLACES // 2))
        self._count = 0
        self._places = array.array("Q", bytes(8 * _LEAST_PLACES))  # hash, and name + 1; 0: empty
        self._mask = _LEAST_PLACES - 1

    def add(self, name: bytes, number: int) -> None:
        """Add a name that is not in the table; MemoryError if there is no room for it."""
        self._make_room(len(name))
        first = self._used
        self._used = _copy(name, 0, len(name), self._letters, first)
        self._starts[self._count] = first
        self._sizes[self._count] = len(name)
        self._numbers[self._count] = number
        self._count += 1
        self._take_place(self._count - 1)

    def look(self, text: bytes, codes: bytes | bytearray, unknown: int, found: bytearray) -> None:
        """Write into *found*, for each name of a plain text, the entry of *codes* at its number.

        That is *unknown* if the name has no number, or *codes* no such entry.
        """
        size, known, at, number = len(text), len(codes), 0, 0
        while True:
            first = _skip(text, at, size, _QUOTE)
            if first < 0:
                return
            at = _end(text, first, size)
            if number == len(found):
                raise ValueError(_FEWER)
            name = self._find(text, first, at)
            code = unknown
            if name >= 0 and self._numbers[name] < known:
                code = codes[self._numbers[name]]
            found[number] = code
            number += 1
            at += 1
            first = _skip(text, at, size, _COMMA)
            at = max(first, at)

    def _find(self, text: bytes, first: int, end: int) -> int:
        """Return the index of the name in *text*; -1 if it is not in the table."""
        # Copy no memoryview here: that would cost more than all the rest.
        mixed = _hash(text, first, end)
        at = mixed & self._mask
        while True:
            place = self._places[at]
            if place == 0:
                return -1
            if place >> 32 == mixed and self._is(place & _LOW, text, first, end):
                return (place & _LOW) - 1
            at = (at + 1) & self._mask

    def _is(self, place: int, text: bytes, first: int, end: int) -> bool:
        name = place - 1
        start = self._starts[name]
        if self._sizes[name] != end - first:
            return False
        differing = 0
        for at in range(end - first):
            differing |= self._letters[start + at] ^ text[first + at]
        return differing == 0

    def _take_place(self, name: int) -> None:
        start = self._starts[name]
        mixed = _hash(self._letters, start, start + self._sizes[name])
        at = mixed & self._mask
        while self._places[at] != 0:
            at = (at + 1) & self._mask
        place = mixed  # 64 bits wide
        self._places[at] = place << 32 | (name + 1)

    def _make_room(self, size: int) -> None:
        """Make room for one more name of *size* characters."""
        if size > _MOST_BYTES - self._used:
            raise MemoryError
        if self._used + size > len(self._letters):
            letters = bytearray(2 * (self._used + size))
            letters[: self._used] = bytes(self._letters[: self._used])
            self._letters = letters
        if 2 * self._count <= self._mask:
            return
        more = array.array("I", bytes(4 * self._count))
        self._starts = array.array("I", self._starts) + more
        self._sizes = array.array("I", self._sizes) + more
        self._numbers = array.array("I", self._numbers) + more
        self._mask = 2 * self._mask + 1
        self._places = array.array("Q", bytes(8 * (self._mask + 1)))
        for name in range(self._count):
            self._take_place(name)


def _hash(text: bytes | bytearray, first: int, end: int) -> int:
    """Return a 32-bit hash, computed from eight characters at a time."""
    mixed, at = end - first, first
    while at < end:
        word = 0
        if end - at >= 8:
            for next_ in range(8):
                word = word << 8 | text[at + next_]
            at += 8
        else:
            while at < end:
                word = word << 8 | text[at]
                at += 1
        mixed = ((mixed ^ word) * _FACTOR) & _WORD
        mixed ^= mixed >> 32
    return mixed & _LOW
