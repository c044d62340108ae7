"""Parser for the dynamic loader's cache, /etc/ld.so.cache: maps library names to files.

There are three formats of the file, all written by glibc's ``ldconfig``:

    old      "ld.so-1.7.0", a count, entries of 12 bytes, text         (ldconfig -c old)
    new      "glibc-ld.so.cache1.1", a head of 48 bytes, entries of 24 (-c new, since 2.32)
    compat   the old one, with the new one in place of its text        (-c compat, till 2.31)

New ones may end in extensions, one of which names the folders below ``glibc-hwcaps``. No number in
the file is trusted: an offset outside the file is an error, and so is anything that is not text.
Nothing is looked up on the file system.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import root

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 16 << 20  # of a cache; a machine with ten thousand libraries has one of 2 MiB
_MOST_TEXT = 4096  # of one name or path: PATH_MAX

_OLD = b"ld.so-1.7.0\0"
_NEW = b"glibc-ld.so.cache1.1"
_OLD_ENTRY = struct.Struct("<iII")  # flags, name, path: the latter two are offsets in the text
_NEW_HEAD = struct.Struct("<20sIIB3xI12x")  # magic, count, bytes of text, endianness, extensions
_NEW_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, kernel, hwcap
_EXTENSIONS = struct.Struct("<II")  # magic, count
_EXTENSION = struct.Struct("<IIII")  # tag, flags, where, bytes
_EXTENSIONS_MAGIC = 0xEAA42174
_HWCAPS_TAG = 1
_HWCAPS_BIT = 1 << 62  # in hwcap: its lower 32 bits are an index into that extension
_LITTLE = (0, 2)  # endianness of a file; 0 if written by a glibc without that field

# The machine of a library by the upper bits of the flags; 0 is the original one.
_MACHINES = {
    0x0000: "EM_386",
    0x0300: "EM_X86_64",
    0x0500: "EM_PPC64",
    0x0800: "x32",  # EM_X86_64 with pointers of 32 bits
    0x0900: "EM_ARM",
    0x0A00: "EM_AARCH64",
    0x0B00: "EM_ARM",
    0x1000: "EM_RISCV",
}
_ELF = (1, 3)  # the lower bits: an ELF library, of any libc or of glibc


class CacheError(errors.DataError):
    """The loader's cache is damaged, or of an unknown format."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheEntry:
    """One line of the cache."""

    name: str  # the library's name, such as libcuda.so.1
    path: str  # the file, absolute
    machine: str | None  # such as EM_X86_64; None for unknown flags
    hwcap: str | None = None  # its folder of glibc-hwcaps, or "legacy"


def read(path: Path) -> tuple[CacheEntry, ...]:
    """Return the entries of the cache *path*, in its order; CacheError, or OSError."""
    data = root.read_regular(path, _MOST_BYTES)
    try:
        return parse(data)
    except CacheError as exc:
        raise CacheError(f"{exc}; run ldconfig to rebuild it") from exc


def parse(data: bytes) -> tuple[CacheEntry, ...]:
    """Return the entries of a cache with the content *data*."""
    if data.startswith(_NEW):
        return _parse_new(data, 0)
    if not data.startswith(_OLD):
        raise CacheError(f"not a loader's cache (it starts with {data[: len(_NEW)]!r})")
    start = len(_OLD) + 4
    (count,) = _unpack(struct.Struct("<I"), data, len(_OLD))
    text = start + _table(data, start, count, _OLD_ENTRY)
    for alignment in (8, 4):  # of the machine that wrote it
        new = -(-text // alignment) * alignment
        if data.startswith(_NEW, new):
            return _parse_new(data, new)
    entries = (_OLD_ENTRY.unpack_from(data, start + i * _OLD_ENTRY.size) for i in range(count))
    texts = _Texts(data, text, text)
    return tuple(
        CacheEntry(texts.at(name), texts.at(path), _machine(flags))
        for flags, name, path in entries
    )


def _parse_new(data: bytes, head: int) -> tuple[CacheEntry, ...]:
    """Return the entries of the new table whose head is at *head*."""
    _, count, length, endianness, extensions = _unpack(_NEW_HEAD, data, head)
    if endianness not in _LITTLE or (not endianness and _is_swapped(data, head, count)):
        raise CacheError("of a machine with the opposite byte order")
    start = head + _NEW_HEAD.size
    text = start + _table(data, start, count, _NEW_ENTRY)
    if length > len(data) - text:
        raise CacheError(f"truncated: {length} bytes of text, {len(data) - text} are there")
    texts = _Texts(data, head, text)
    hwcaps = _read_hwcaps(data, extensions, texts) if extensions else ()
    entries = (_NEW_ENTRY.unpack_from(data, start + i * _NEW_ENTRY.size) for i in range(count))
    return tuple(
        CacheEntry(texts.at(name), texts.at(path), _machine(flags), _hwcap(hwcap, hwcaps))
        for flags, name, path, _, hwcap in entries
    )


def _read_hwcaps(data: bytes, where: int, texts: _Texts) -> tuple[str, ...]:
    """Return the folders that the extensions at *where* name, by index."""
    magic, count = _unpack(_EXTENSIONS, data, where)
    if magic != _EXTENSIONS_MAGIC:
        raise CacheError("its extensions are outside the file")
    start = where + _EXTENSIONS.size
    _table(data, start, count, _EXTENSION)
    for i in range(count):
        tag, _, offset, length = _EXTENSION.unpack_from(data, start + i * _EXTENSION.size)
        if offset > len(data) or length > len(data) - offset:
            raise CacheError(f"truncated: an extension of {length} bytes at {offset}")
        if tag == _HWCAPS_TAG:
            return tuple(
                texts.at(at) for (at,) in struct.iter_unpack("<I", _whole(data, offset, length))
            )
    return ()


class _Texts:
    """The text of a cache: positions count from *base*, and none is before *first*."""

    def __init__(self, data: bytes, base: int, first: int) -> None:
        self._data = data
        self._base = base
        self._first = first
        self._read: dict[int, str] = {}
        # A name may be the end of a path; no other text occurs twice.
        self._left = 2 * len(data)

    def at(self, where: int) -> str:
        """Return the null-terminated text at *where*."""
        if where in self._read:
            return self._read[where]
        start = self._base + where
        if not self._first <= start < len(self._data):
            raise CacheError(f"a name at {where}, which is outside its text")
        end = self._data.find(b"\0", start, start + _MOST_TEXT)
        if end < 0:
            raise CacheError(f"a name at {where} without an end")
        self._left -= end - start
        if self._left < 0:
            raise CacheError("names that overlap: more text than the file has")
        return self._read.setdefault(where, os.fsdecode(self._data[start:end]))


def _machine(flags: int) -> str | None:
    return _MACHINES.get(flags & 0xFF00) if flags & 0xFF in _ELF else None


def _hwcap(value: int, folders: tuple[str, ...]) -> str | None:
    if not value & _HWCAPS_BIT:
        return "legacy" if value else None
    index = value & 0xFFFFFFFF
    if index >= len(folders):
        raise CacheError(f"a folder of glibc-hwcaps with number {index}; it has {len(folders)}")
    return folders[index]


def _table(data: bytes, start: int, count: int, entry: struct.Struct) -> int:
    """Return the size of *count* entries at *start*, after checking that all are in the file."""
    if count * entry.size > len(data) - start:
        raise CacheError(
            f"truncated: {count} entries, room for {(len(data) - start) // entry.size}"
        )
    return count * entry.size


def _unpack(form: struct.Struct, data: bytes, where: int) -> tuple[int, ...]:
    if where > len(data) - form.size:
        raise CacheError(f"truncated: it has {len(data)} bytes")
    return form.unpack_from(data, where)


def _whole(data: bytes, offset: int, length: int) -> bytes:
    if length % 4:
        raise CacheError(f"an extension of {length} bytes, which is not a multiple of 4")
    return data[offset : offset + length]


def _is_swapped(data: bytes, head: int, count: int) -> bool:
    """Return whether the count is plausible only with swapped bytes."""
    swapped = int.from_bytes(count.to_bytes(4, "little"), "big")
    room = (len(data) - head) // _NEW_ENTRY.size
    return count > room >= swapped
