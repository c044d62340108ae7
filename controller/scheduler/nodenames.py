# cython: language_level=3, annotation_typing=False
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Look up and write thousands of node names directly in JSON text.

Compiled by Cython with the types of nodenames.pxd; works without, only slower. A *text* is the
content of a JSON list of names, without the brackets. It is plain if it is what Go writes for
names of nodes: printable ASCII without backslashes. Only plain text is searched here.

The hash table uses open addressing, with at least twice as many slots as names. A slot holds part
of its name's hash, so that most other names are skipped without comparing their characters. Lookup
mostly waits for memory: so all hashes are computed first, which lets the processor load the slots
of several names at once, and each name is stored in one piece, with its number.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST_PLACES = 1024
_LEAST_WORDS = 4096
_MOST_BYTES = (1 << 31) - 1  # of a text
_MOST_WORDS = (1 << 32) - 2  # of all names in a table
_MOST_CODES = 256
_FACTOR = 0x9E3779B97F4A7C15  # of the hash: odd, with well-mixed bits
_WORD, _LOW = (1 << 64) - 1, (1 << 32) - 1
_QUOTE, _COMMA, _SPACE, _BACKSLASH, _LAST = b'", \\~'
_BETWEEN = 3  # characters between two names without spaces


class NameList:
    """The names in a plain text."""

    def __init__(self, text: bytes) -> None:
        """Find the names in *text*; ValueError if it is not plain, or no list of names."""
        self.text = text
        self._letters = text
        quotes = _count_quotes(text)
        if quotes < 0:
            raise ValueError("no plain text")
        self.count = quotes // 2
        self._spans = array.array("I", bytes(4 * quotes))  # start and end of each name
        if quotes % 2 or not _find_spans(text, self._spans, self.count):
            raise ValueError("no list of names")

    def only(self, found: bytes | bytearray, code: int) -> bytes:
        """Return the text of the names whose code is *code*; *found* has the code of each."""
        self._check(found)
        out = bytearray(_size_of_only(self._spans, self.count, found, code))
        _write_only(self._letters, self._spans, self.count, found, code, out)
        return bytes(out)

    def write(self, found: bytes | bytearray, forms: Mapping[int, tuple[bytes, bytes]]) -> bytes:
        """Return each name in quotes, between the two texts in *forms* of its code.

        *found* has the code of each. Names whose code has no form are left out.
        """
        self._check(found)
        pieces = bytearray()
        starts, middles, ends = (array.array("i", [-1]) * _MOST_CODES for _ in range(3))
        for code, (before, behind) in forms.items():
            starts[code] = len(pieces)
            pieces += before
            middles[code] = len(pieces)
            pieces += behind
            ends[code] = len(pieces)
        out = bytearray(_size_of_forms(self._spans, self.count, found, starts, ends))
        texts = bytes(pieces)
        _write_forms(
            self._letters, self._spans, self.count, found, texts, starts, middles, ends, out
        )
        return bytes(out)

    def _check(self, found: bytes | bytearray) -> None:
        if len(found) < self.count:
            raise ValueError("fewer codes than names")


class NameTable:
    """A hash table from names, as written in a text, to numbers."""

    def __init__(self) -> None:
        # Of each name: its number and size, then its characters, eight to a word.
        self._records = array.array("Q", bytes(8 * _LEAST_WORDS))
        self._used = 0  # words of _records
        self._count = 0
        self._places = array.array("Q", bytes(8 * _LEAST_PLACES))  # hash, record + 1; 0: empty
        self._mask = _LEAST_PLACES - 1

    def add(self, name: bytes, number: int) -> None:
        """Add a name that is not in the table; MemoryError if there is no room for it."""
        size = len(name)
        self._make_room((size + 7) // 8 + 1)
        word = number  # 64 bits wide
        self._records[self._used] = word << 32 | size
        at, used = 0, self._used + 1
        while at < size:
            self._records[used] = _load(name, at, size)
            at += 8
            used += 1
        word = _hash(name, 0, size)
        _place(self._places, self._mask, word << 32 | (self._used + 1))
        self._used = used
        self._count += 1

    def lookup(
        self, names: NameList, codes: bytes | bytearray, unknown: int, found: bytearray
    ) -> None:
        """Write into *found*, for each of the names, the entry of *codes* at its number.

        That is *unknown* if the name has no number, or *codes* no such entry.
        """
        names._check(found)
        hashes = array.array("I", bytes(4 * names.count))
        _hash_all(names._letters, names._spans, names.count, hashes)
        _lookup_all(
            names._letters,
            names._spans,
            hashes,
            self._places,
            self._mask,
            self._records,
            codes,
            unknown,
            found,
        )

    def _make_room(self, words: int) -> None:
        """Make room for one more name of so many words."""
        if words > _MOST_WORDS - self._used:
            raise MemoryError
        if self._used + words > len(self._records):
            more = array.array("Q", bytes(8 * (self._used + words)))
            self._records = array.array("Q", self._records) + more
        if 2 * self._count <= self._mask:
            return
        before = self._places
        self._mask = 2 * self._mask + 1
        self._places = array.array("Q", bytes(8 * (self._mask + 1)))
        for at in range(len(before)):
            if before[at] != 0:
                _place(self._places, self._mask, before[at])


def _count_quotes(text: bytes) -> int:
    """Return the number of quotes in a text; -1 if it is not plain."""
    size = len(text)
    if size > _MOST_BYTES:
        return -1
    odd = quotes = 0
    for at in range(size):  # no early exit, so that the compiler vectorizes
        letter = text[at]
        odd |= (letter < _SPACE) | (letter > _LAST) | (letter == _BACKSLASH)
        quotes += letter == _QUOTE
    return -1 if odd else quotes


def _find_spans(text: bytes, spans: array.array[int], count: int) -> bool:
    """Write the start and the end of each name to *spans*; return whether *text* is a list.

    It has twice as many quotes as the *count* of names.
    """
    size, at = len(text), 0
    for name in range(count):
        if name:
            at = _skip(text, at, size, _COMMA)
            if at < 0:
                return False
        at = _skip(text, at, size, _QUOTE)
        if at < 0:
            return False
        spans[2 * name] = at
        while text[at] != _QUOTE:  # there is one: their number is even
            at += 1
        spans[2 * name + 1] = at
        at += 1
    while at < size and text[at] == _SPACE:
        at += 1
    return at == size


def _skip(text: bytes, at: int, size: int, letter: int) -> int:
    """Return the index after *letter*, which spaces may precede; -1 if it is not there."""
    while at < size and text[at] == _SPACE:
        at += 1
    return at + 1 if at < size and text[at] == letter else -1


def _size_of_only(spans: array.array[int], count: int, found: bytes | bytearray, code: int) -> int:
    """Return how many bytes _write_only writes."""
    total = 0
    for name in range(count):
        if found[name] == code:
            total += spans[2 * name + 1] - spans[2 * name] + _BETWEEN
    return total - 1 if total else 0


def _write_only(
    text: bytes,
    spans: array.array[int],
    count: int,
    found: bytes | bytearray,
    code: int,
    out: bytearray,
) -> None:
    first = end = to = 0  # of names that follow each other without spaces
    for name in range(count):
        if found[name] != code:
            continue
        start = spans[2 * name]
        if end == 0 or start != end + _BETWEEN:
            if end:
                to = _copy(text, first - 1, end + 1, out, to)
                out[to] = _COMMA
                to += 1
            first = start
        end = spans[2 * name + 1]
    if end:
        _copy(text, first - 1, end + 1, out, to)


def _size_of_forms(
    spans: array.array[int],
    count: int,
    found: bytes | bytearray,
    starts: array.array[int],
    ends: array.array[int],
) -> int:
    """Return how many bytes _write_forms writes."""
    total = 0
    for name in range(count):
        code = found[name]
        if starts[code] >= 0:
            total += spans[2 * name + 1] - spans[2 * name] + 2 + ends[code] - starts[code]
    return total


def _write_forms(
    text: bytes,
    spans: array.array[int],
    count: int,
    found: bytes | bytearray,
    pieces: bytes,
    starts: array.array[int],
    middles: array.array[int],
    ends: array.array[int],
    out: bytearray,
) -> None:
    to = 0
    for name in range(count):
        code = found[name]
        if starts[code] >= 0:
            to = _copy(pieces, starts[code], middles[code], out, to)
            to = _copy(text, spans[2 * name] - 1, spans[2 * name + 1] + 1, out, to)
            to = _copy(pieces, middles[code], ends[code], out, to)


def _copy(source: bytes, first: int, end: int, out: bytearray, to: int) -> int:
    for at in range(first, end):
        out[to] = source[at]
        to += 1
    return to


def _load(text: bytes, at: int, end: int) -> int:
    """Return the characters of a name from an index on, at most eight, as a number."""
    word = 0
    if at + 8 <= len(text):  # the compiler makes one load of this
        for behind in range(7, -1, -1):
            word = word << 8 | text[at + behind]
        if end - at < 8:
            word &= _WORD >> 8 * (8 - (end - at))
        return word
    for behind in range(end - 1, at - 1, -1):
        if behind < at + 8:
            word = word << 8 | text[behind]
    return word


def _hash(text: bytes, start: int, end: int) -> int:
    """Return a 32-bit hash of a name, computed from eight characters at a time."""
    mixed, at = end - start, start
    while at < end:
        mixed = ((mixed ^ _load(text, at, end)) * _FACTOR) & _WORD
        mixed ^= mixed >> 32
        at += 8
    return mixed & _LOW


def _hash_all(text: bytes, spans: array.array[int], count: int, hashes: array.array[int]) -> None:
    for name in range(count):
        hashes[name] = _hash(text, spans[2 * name], spans[2 * name + 1])


def _place(places: array.array[int], mask: int, place: int) -> None:
    """Store *place* in the first empty slot for its hash."""
    at = place >> 32 & mask
    while places[at] != 0:
        at = (at + 1) & mask
    places[at] = place


def _lookup_all(
    text: bytes,
    spans: array.array[int],
    hashes: array.array[int],
    places: array.array[int],
    mask: int,
    records: array.array[int],
    codes: bytes | bytearray,
    unknown: int,
    found: bytearray,
) -> None:
    """Do what NameTable.lookup does."""
    known = len(codes)
    for name in range(len(hashes)):
        mixed = hashes[name]
        at = mixed & mask
        code = unknown
        place = places[at]
        while place != 0:
            if place >> 32 == mixed:
                record = (place & _LOW) - 1
                if _is(records, record, text, spans[2 * name], spans[2 * name + 1]):
                    number = records[record] >> 32
                    if number < known:
                        code = codes[number]
                    break
            at = (at + 1) & mask
            place = places[at]
        found[name] = code


def _is(records: array.array[int], record: int, text: bytes, start: int, end: int) -> bool:
    """Return whether a record is of this name."""
    if records[record] & _LOW != end - start:
        return False
    differing, at = 0, start
    while at < end:
        record += 1
        differing |= records[record] ^ _load(text, at, end)
        at += 8
    return differing == 0
