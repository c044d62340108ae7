"""Names of nodes by the thousand: kept as the text that they came in, and answered as one.

For each pod kube-scheduler names all nodes, in any order, and is answered with most of them. To
make a text of each and look it up would take longer than all the rest of an answer; so that is
done by csrc/scheduler/nodenames.c, and no name becomes an object unless somebody looks at it. What
is not written plainly, as no node is called, is read as any other JSON is.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from pyvgpu import shim
from pyvgpu._nodenames import ffi

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Codes = bytes | bytearray  # of names, one for each
MOST_CODES = 256


class Listed(Sequence[str]):
    """Names, read-only, from a list in JSON."""

    __slots__ = ("_count", "_names", "text")

    def __init__(self, text: bytes, count: int, names: Sequence[str] | None = None) -> None:
        """Have the *count* names of *text*, which is plain; *names* are these, if known."""
        self.text = text  # without the brackets
        self._count = count
        self._names = names

    def __len__(self) -> int:
        """Return how many they are."""
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        """Return one of them, or some."""
        return self._all()[at]

    def __iter__(self) -> Iterator[str]:
        """Give one after the other."""
        return iter(self._all())

    def __contains__(self, name: object) -> bool:
        """Tell whether one is called so."""
        return name in self._all()

    def _all(self) -> Sequence[str]:
        if self._names is None:
            self._names = json.loads(b"[" + self.text + b"]")
        return self._names

    def only(self, found: Codes, code: int) -> Listed:
        """Return those whose code in *found*, which has one for each, is *code*."""
        text = self.write(found, {code: (b"", b",")})
        return Listed(text[:-1], found.count(code))

    def write(self, found: Codes, forms: Mapping[int, tuple[bytes, bytes]]) -> bytes:
        """Return each name in quotes, in the form of its code: between two texts, or not at all.

        *found* has the code of each.
        """
        made = ffi.new("struct nodenames_form[]", MOST_CODES)
        kept = []  # as long as it is used
        for code, texts in forms.items():
            before, after = (ffi.from_buffer(text) for text in texts)
            kept += [before, after]
            made[code] = (before, after, len(texts[0]), len(texts[1]))
        codes = ffi.from_buffer("uint8_t[]", found)
        size = _library().nodenames_write(self.text, len(self.text), codes, made, ffi.NULL)
        out = bytearray(size)
        _library().nodenames_write(
            self.text, len(self.text), codes, made, ffi.from_buffer("char[]", out)
        )
        return bytes(out)


def read(text: bytes) -> Listed | None:
    """Return the names of a list, of which *text* stands between the brackets.

    None if it is not written plainly, or is no list of names.
    """
    count = _library().nodenames_count(text, len(text))
    return None if count < 0 else Listed(text, count)


def of(names: Sequence[str]) -> Sequence[str]:
    """Return *names* so that they are looked up as fast as those that were read."""
    text = '"' + '","'.join(names) + '"' if names else ""
    found = read(text.encode()) if text.isascii() else None
    if found is None or len(found) != len(names):  # one with quotes in it looks like several
        return names
    return Listed(found.text, len(names), names)


def only(names: Sequence[str], found: Codes, code: int) -> Sequence[str]:
    """Return those of *names* whose code in *found*, which has one for each, is *code*."""
    if isinstance(names, Listed):
        return names.only(found, code)
    return list(itertools.compress(names, (it == code for it in found)))


class Roll:
    """Names that have numbers, from 0; called by one thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._table = ffi.gc(_library().nodenames_new(), _library().nodenames_free)
        if not self._table:
            raise MemoryError

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers)

    def find(self, name: str) -> int | None:
        """Return a name's number, None if it has none."""
        return self._numbers.get(name)

    def number(self, name: str) -> int:
        """Return a name's number, which it gets if it has none."""
        found = self._numbers.get(name)
        if found is None:
            found = len(self._numbers)
            written = json.dumps(name).encode()[1:-1]  # which no plain text has if it is not plain
            if _library().nodenames_add(self._table, written, len(written), found):
                raise MemoryError
            self._numbers[name] = found
        return found

    def look(self, names: Sequence[str], codes: bytes | bytearray, unknown: int) -> Codes:
        """Return the code of each of *names*, which stands in *codes* by its number."""
        if not isinstance(names, Listed):
            numbers = (self._numbers.get(name, len(codes)) for name in names)
            return bytes(codes[it] if it < len(codes) else unknown for it in numbers)
        found = bytearray(len(names))
        _library().nodenames_look(
            self._table,
            names.text,
            len(names.text),
            ffi.from_buffer("uint8_t[]", codes),
            len(codes),
            unknown,
            ffi.from_buffer("uint8_t[]", found),
        )
        return found


@functools.cache
def _library() -> Any:
    return ffi.dlopen(str(shim.nodenames_library()))
