"""Headers as HTTP/2 has them on the wire: RFC 7541.

To read what we send takes no memory of what was sent before; what comes may.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu.rpc import huffman

if TYPE_CHECKING:
    from collections.abc import Iterable

Header: TypeAlias = tuple[bytes, bytes]

TABLE_BYTES = 4096  # of what is remembered, if nobody says less
MOST_BYTES = 64 << 10  # of the headers of one message

_ENTRY_BYTES = 32  # that an entry of the table counts beyond its texts
_MOST_SHIFT = 28  # of a number on the wire

_STATIC: tuple[Header, ...] = (  # appendix A
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", it) for it in b"200 204 206 304 400 404 500".split()),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (it, b"")
        for it in b"""accept-language accept-ranges accept access-control-allow-origin age allow
        authorization cache-control content-disposition content-encoding content-language
        content-length content-location content-range content-type cookie date etag expect expires
        from host if-match if-modified-since if-none-match if-range if-unmodified-since
        last-modified link location max-forwards proxy-authenticate proxy-authorization range
        referer refresh retry-after server set-cookie strict-transport-security transfer-encoding
        user-agent vary via www-authenticate""".split()
    ),
)


def encode(headers: Iterable[Header]) -> bytes:
    """Return a block of *headers*, none of which is to be remembered."""
    return b"".join(
        b"\0" + _length(len(name)) + name + _length(len(value)) + value for name, value in headers
    )


class Decoder:
    """Reads the blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table: collections.deque[Header] = collections.deque()  # the newest first
        self._size = 0
        self._room = TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """Return the headers in a *block*; ValueError if it is none: nothing can be read then."""
        found: list[Header] = []
        place = size = 0
        try:
            while place < len(block):
                header, place = self._next(block, place)
                if header is not None:
                    found.append(header)
                    size += len(header[0]) + len(header[1])
                if size > MOST_BYTES:
                    raise ValueError("headers are too long")
        except IndexError as exc:
            raise ValueError("headers end too early") from exc
        return found

    def _next(self, block: bytes, place: int) -> tuple[Header | None, int]:
        first = block[place]
        if first & 0x80:
            index, place = _integer(block, place, 7)
            return self._entry(index), place
        if first & 0x40:
            header, place = self._literal(block, place, 6)
            self._remember(header)
            return header, place
        if first & 0x20:
            self._room, place = _integer(block, place, 5)
            if self._room > TABLE_BYTES:
                raise ValueError("more headers are to be remembered than was agreed")
            self._forget()
            return None, place
        return self._literal(block, place, 4)

    def _entry(self, index: int) -> Header:
        if not index:
            raise ValueError("header 0 is none")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        return self._table[index - len(_STATIC) - 1]

    def _literal(self, block: bytes, place: int, bits: int) -> tuple[Header, int]:
        index, place = _integer(block, place, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, place = _text(block, place)
        value, place = _text(block, place)
        return (name, value), place

    def _remember(self, header: Header) -> None:
        self._table.appendleft(header)
        self._size += _size(header)
        self._forget()

    def _forget(self) -> None:
        while self._size > self._room:
            self._size -= _size(self._table.pop())


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + _ENTRY_BYTES


def _text(block: bytes, place: int) -> tuple[bytes, int]:
    coded = block[place] & 0x80
    length, place = _integer(block, place, 7)
    end = place + length
    if end > len(block):
        raise IndexError
    content = block[place:end]
    return (huffman.decode(content) if coded else content), end


def _integer(block: bytes, place: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[place] & most
    place += 1
    if value < most:
        return value, place
    for shift in range(0, _MOST_SHIFT + 1, 7):
        byte = block[place]
        place += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise ValueError("a number among the headers is too long")


def _length(value: int) -> bytes:
    """Return the length of a text that is not coded."""
    if value < 0x7F:
        return bytes((value,))
    value -= 0x7F
    found = bytearray((0x7F,))
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
