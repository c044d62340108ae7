"""Open file description (OFD) locks on single bytes.

Unlike POSIX locks they survive a close() elsewhere and are released with the last copy of the
descriptor or mapping they were taken on, in any pid namespace. Only the kernel knows the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")  # of 64-bit Linux: type, whence, start, length, pid


def take(descriptor: int, byte: int) -> bool:
    """Take the write lock on *byte*; false if another descriptor holds it."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _question(fcntl.F_WRLCK, byte, 1))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_held(descriptor: int, byte: int, length: int = 1) -> bool:
    """Return whether another descriptor holds a write lock in *length* bytes from *byte*.

    A read-only descriptor is enough.
    """
    return _any_held(descriptor, byte, length) is not None


def is_locked(descriptor: int, byte: int = 0, length: int = 0) -> bool:
    """Return whether another holds any lock in *length* bytes, a read lock too; 0: to the end."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _question(fcntl.F_WRLCK, byte, length))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def holder(descriptor: int) -> int | None:
    """Return the pid that holds a POSIX write lock on the open file; None if there is no lock.

    0 if the holder is not in our pid namespace; -1 for an OFD lock, which has no pid.
    """
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _question(fcntl.F_RDLCK, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(pid)


def all_held(descriptor: int, byte: int, length: int) -> list[int]:
    """Return the bytes of the range on which other descriptors hold write locks, in order."""
    found, ranges = [], [(byte, byte + length)]
    while ranges:  # the kernel reports one lock of a range: ask about what is on both sides of it
        begin, end = ranges.pop()
        if begin < end and (held := _any_held(descriptor, begin, end - begin)) is not None:
            found.append(held)
            ranges += (begin, held), (held + 1, end)
    return sorted(found)


def _any_held(descriptor: int, byte: int, length: int) -> int | None:
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _question(fcntl.F_RDLCK, byte, length))
    kind, _, start, _, _ = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(start, byte)


def wait_free(descriptor: int, byte: int, length: int) -> None:
    """Sleep until no descriptor holds a write lock in the range."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _question(fcntl.F_RDLCK, byte, length))
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _question(fcntl.F_UNLCK, byte, length))


def is_flocked(folder: Path) -> bool:
    """Return whether a process holds a flock on *folder*; false if there is no such folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _question(kind: int, byte: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, byte, length, 0)
