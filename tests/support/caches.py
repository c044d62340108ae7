"""Writes ld.so.cache files in every format from the format's description, without ldconfig."""

import dataclasses
import struct

X86_64 = 0x0303
I386 = 0x0003
AARCH64 = 0x0A03


@dataclasses.dataclass(frozen=True)
class Line:
    """One entry of a cache."""

    name: str
    path: str
    flags: int = X86_64
    hwcap: int = 0


def old(lines):
    """Return what ``ldconfig -c old`` writes."""
    head = b"ld.so-1.7.0\0" + struct.pack("<I", len(lines))
    return head + _old_entries(lines, 0) + _text(lines)


def new(lines, folders=(), order="<", endianness=2):
    """Return what ``ldconfig -c new`` writes, with *folders* of glibc-hwcaps."""
    return _new(lines, folders, order, endianness, 0)


def compat(lines, folders=()):
    """Return what ``ldconfig -c compat`` writes."""
    head = b"ld.so-1.7.0\0" + struct.pack("<I", len(lines))
    start = len(head) + 12 * len(lines)
    pad = -start % 8
    entries = _old_entries(lines, pad + 48 + 24 * len(lines))
    return head + entries + bytes(pad) + _new(lines, folders, "<", 2, start + pad)


def _new(lines, folders, order, endianness, before):
    """Return the new-format table, which starts *before* bytes into its file."""
    texts = _text(lines)
    hwcaps = b"".join(folder.encode() + b"\0" for folder in folders)
    first = 48 + 24 * len(lines)
    end = first + len(texts) + len(hwcaps)
    pad = -(before + end) % 4
    head = struct.pack(
        f"{order}20sIIB3xI12x",
        b"glibc-ld.so.cache1.1",
        len(lines),
        len(texts) + len(hwcaps),
        endianness,
        before + end + pad if folders else 0,
    )
    entries = b"".join(
        struct.pack(f"{order}iIIIQ", line.flags, first + name, first + path, 0, line.hwcap)
        for line, (name, path) in zip(lines, _places(lines), strict=True)
    )
    whole = head + entries + texts + hwcaps
    if folders:
        where = [
            first + len(texts) + sum(len(f) + 1 for f in folders[:i]) for i in range(len(folders))
        ]
        indices = struct.pack(f"{order}{len(where)}I", *where)
        at = before + end + pad + 8 + 16
        whole += bytes(pad) + struct.pack(f"{order}II", 0xEAA42174, 1)
        whole += struct.pack(f"{order}IIII", 1, 0, at, len(indices)) + indices
    return whole


def _old_entries(lines, first):
    return b"".join(
        struct.pack("<iII", line.flags, first + name, first + path)
        for line, (name, path) in zip(lines, _places(lines), strict=True)
    )


def _places(lines):
    """Yield each line's name and path offsets in the text; a name may be its path's suffix."""
    place = 0
    for line in lines:
        path = _encoded(line.path)
        if line.path.endswith(f"/{line.name}"):
            yield place + len(path) - len(_encoded(line.name)), place
            place += len(path) + 1
        else:
            yield place + len(path) + 1, place
            place += len(path) + 1 + len(_encoded(line.name)) + 1


def _text(lines):
    text = b""
    for line in lines:
        text += _encoded(line.path) + b"\0"
        if not line.path.endswith(f"/{line.name}"):
            text += _encoded(line.name) + b"\0"
    return text


def _encoded(text):
    return text.encode(errors="surrogateescape")
