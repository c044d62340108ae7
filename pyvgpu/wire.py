"""Messages of Protocol Buffers, by the numbers of their fields.

The few messages that we exchange with kubelet and container runtimes need no generated code, nor
the library that it would need. Zeros and empty strings may be written; a reader takes them as
absent.
"""

from __future__ import annotations

import functools
import operator
import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    Value: TypeAlias = "int | float | str | bytes | Mapping[int, Content]"
    Content: TypeAlias = "Value | Sequence[Value]"

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types
_SHORT = 0x7F  # the most that a varint of one byte is
_FEW = 7  # bytes, of an id
_NEXT = bytes((it + 1) % 256 for it in range(256))
_SINGLE = (int, float, str, bytes, Mapping)
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


def encode(message: Mapping[int, Content]) -> bytes:
    """Return *message* on the wire; a list is a repeated field, a float has 32 bits."""
    return b"".join(
        _field(number, value)
        for number, content in message.items()
        for value in ([content] if isinstance(content, _SINGLE) else content)
    )


def labels(pairs: Mapping[str, str]) -> list[Value]:
    """Return a map of strings as the entries that it is on the wire."""
    return [{1: key, 2: value} for key, value in pairs.items()]


class Message:
    """A message that was received; what it lacks is zero or empty."""

    def __init__(self, content: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        place, end = 0, len(content)
        key = 0
        last, found = 0, list[int | bytes]()  # the field that was read before this one
        while place < end:
            if (
                content[place] == key <= _SHORT
                and key & 7 == _BYTES
                and place + 1 < end
                and content[place + 1] <= _FEW
            ):  # as the one before
                run = _run(key).match(content, place)
                parts = _split(run[0], key) if run else ()
                if run and parts:
                    found += parts
                    place = run.end()
                    continue
            # What has one byte is read here.
            key = content[place]
            place += 1
            if key > _SHORT:
                key, place = _read_varint(content, place - 1)
            value: int | bytes
            if key & 7 == _VARINT:
                value, place = _read_varint(content, place)
            else:
                length = _FIXED.get(key & 7)
                if key & 7 == _BYTES:
                    length = content[place] if place < end else end
                    place += 1
                    if length > _SHORT:
                        length, place = _read_varint(content, place - 1)
                if length is None or place + length > end:
                    raise ValueError(f"no message: {content[:32]!r}")
                value = content[place : place + length]
                place += length
            if key >> 3 != last:
                last = key >> 3
                found = self._fields.setdefault(last, [])
            found.append(value)

    def number(self, field: int) -> int:
        """Return an integer, which on the wire has 64 bits and no sign."""
        value = self._fields.get(field, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {field} is not a number")
        return value - (1 << 64) if value >> 63 else value

    def data(self, field: int) -> bytes:
        """Return bytes."""
        value = self._fields.get(field, [b""])[-1]
        return value if isinstance(value, bytes) else b""

    def text(self, field: int) -> str:
        """Return a string."""
        return self.data(field).decode(errors="replace")

    def parts(self, field: int) -> list[bytes]:
        """Return a repeated field of bytes, or of messages that are not looked into."""
        return [it for it in self._fields.get(field, ()) if isinstance(it, bytes)]

    def texts(self, field: int) -> list[str]:
        """Return a repeated field of strings."""
        parts = self.parts(field)
        found = b"\n".join(parts).decode(errors="replace").split("\n")  # all by one call
        if len(found) != len(parts):  # there is none, or one of them has lines
            return [it.decode(errors="replace") for it in parts]
        return found

    def message(self, field: int) -> Message:
        """Return a message in this one."""
        return Message(self.data(field))

    def messages(self, field: int) -> list[Message]:
        """Return a repeated field of messages."""
        return [Message(it) for it in self.parts(field)]

    def labels(self, field: int) -> dict[str, str]:
        """Return a map of strings."""
        return {entry.text(1): entry.text(2) for entry in self.messages(field)}


# Lists of ids have thousands of short fields, one after the other: these are read by the library.


@functools.cache
def _run(key: int) -> re.Pattern[bytes]:
    """Return what matches fields of a few bytes, one after the other."""
    sizes = b"|".join(b"%c.{%d}" % (it, it) for it in range(1, _FEW + 1))
    return re.compile(b"(?:" + re.escape(bytes((key,))) + b"(?:" + sizes + b"))+", re.DOTALL)


def _split(run: bytes, key: int) -> list[bytes]:
    """Return the contents of the fields of a *run*; nothing if the key is in one of them, too."""
    parts = run.split(bytes((key,)))[1:]
    sizes = bytes(map(len, parts))
    if 0 in sizes or bytes(map(operator.itemgetter(0), parts)).translate(_NEXT) != sizes:
        return []
    return [it[1:] for it in parts]


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, float):
        return _varint(number << 3 | _FOUR_BYTES) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    content = (
        value.encode()
        if isinstance(value, str)
        else value
        if isinstance(value, bytes)
        else encode(value)
    )
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    head = b""
    while value > 0x7F:
        head += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return head + bytes((value,))


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & (1 << 64) - 1, place
    raise ValueError(f"no message: {content[:32]!r}")
