"""Lists of thousands of node names, kept as JSON text from request to answer.

For each pod kube-scheduler names all nodes, in any order, and the answer has most of them.
Building a string for each name and looking it up would take longer than the rest of the answer;
so nodenames.py, which is compiled, works on the text, and no name becomes an object unless it is
read. Text that is not plain, which no node's name is, is parsed like any other JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from pyvgpu.controller.scheduler import nodenames

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Codes = bytes | bytearray  # one for each name


class Listed(Sequence[str]):
    """Names, read-only, from a list in JSON."""

    __slots__ = ("_count", "_found", "_names", "text")

    def __init__(
        self,
        text: bytes,
        count: int,
        found: nodenames.NameList | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Hold the *count* names of plain *text*, as *found* there, and parsed, if they are."""
        self.text = text  # without the brackets
        self._count = count
        self._found = found
        self._names = names

    def __len__(self) -> int:
        """Return how many names there are."""
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        """Return one name, or several."""
        return self._all()[at]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._all())

    def __contains__(self, name: object) -> bool:
        """Return whether *name* is among them."""
        return name in self._all()

    def _all(self) -> Sequence[str]:
        if self._names is None:
            self._names = json.loads(b"[" + self.text + b"]")
        return self._names

    @property
    def found(self) -> nodenames.NameList:
        """The places of the names in the text."""
        if self._found is None:
            self._found = nodenames.NameList(self.text)
        return self._found

    def only(self, found: Codes, code: int) -> Listed:
        """Return the names whose code in *found*, which has one for each, is *code*."""
        return Listed(self.found.only(found, code), found.count(code))

    def write(self, found: Codes, forms: Mapping[int, tuple[bytes, bytes]]) -> bytes:
        """Return each name in quotes, between the two texts of its code; none if it has no texts.

        *found* has the code of each.
        """
        return self.found.write(found, forms)


def read(text: bytes) -> Listed | None:
    """Return the names of a JSON list; *text* is what the brackets enclose.

    None if it is not plain, or no list of names.
    """
    try:
        found = nodenames.NameList(text)
    except ValueError:
        return None
    return Listed(text, found.count, found)


def of(names: Sequence[str]) -> Sequence[str]:
    """Return *names* in the form that is looked up as fast as names that were read."""
    text = '"' + '","'.join(names) + '"' if names else ""
    found = read(text.encode()) if text.isascii() else None
    if found is None or len(found) != len(names):  # a name with quotes looks like several
        return names
    return Listed(found.text, len(names), found.found, names)


def only(names: Sequence[str], found: Codes, code: int) -> Sequence[str]:
    """Return the *names* whose code in *found*, which has one for each, is *code*."""
    if isinstance(names, Listed):
        return names.only(found, code)
    return list(itertools.compress(names, (found_code == code for found_code in found)))


class Roll:
    """Assigns numbers to names, from 0; called by one thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._table = nodenames.NameTable()

    def __len__(self) -> int:
        """Return how many names there are."""
        return len(self._numbers)

    def find(self, name: str) -> int | None:
        """Return a name's number, None if it has none."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Return the name of a number."""
        return self._names[number]

    def number(self, name: str) -> int:
        """Return a name's number; assign one if it has none."""
        found = self._numbers.get(name)
        if found is None:
            found = len(self._numbers)
            written = json.dumps(name).encode()[1:-1]  # if not plain, no plain text has it
            self._table.add(written, found)
            self._numbers[name] = found
            self._names.append(name)
        return found

    def lookup(self, names: Sequence[str], codes: bytes | bytearray, unknown: int) -> Codes:
        """Return the code of each of *names*: the entry of *codes* at its number."""
        if not isinstance(names, Listed):
            numbers = (self._numbers.get(name, len(codes)) for name in names)
            return bytes(codes[number] if number < len(codes) else unknown for number in numbers)
        found = bytearray(len(names))
        self._table.lookup(names.found, codes, unknown, found)
        return found
