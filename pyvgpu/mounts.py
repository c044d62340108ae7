"""The mounts of this mount namespace: made, ended and listed."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_ONLY = 1
NO_SET_UID = 2
NO_DEVICES = 4
REMOUNT = 0x20
BIND = 0x1000
RECURSIVE = 0x4000
SLAVE = 1 << 19

_UMOUNT_NOFOLLOW = 8


def mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    """Put *source* on *target*, as the system call of this name does; OSError."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    if libc().mount(*texts, ctypes.c_ulong(flags), data) != 0:
        _fail(target)


def unmount(target: Path) -> None:
    """End the topmost mount on *target*, which must be no link; OSError."""
    if libc().umount2(os.fsencode(target), _UMOUNT_NOFOLLOW) != 0:
        _fail(str(target))


def points() -> Iterator[Path]:
    """Give the folders and files on which something is mounted; see proc(5)."""
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        yield Path(os.fsdecode(unescaped(line.split(b" ")[4])))


def unescaped(field: bytes) -> bytes:
    """Return a field of mountinfo as it was before its blanks were written as numbers."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8),)), field)


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library, which keeps errno for :func:`ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


def _fail(target: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), target)
