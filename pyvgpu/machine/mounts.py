"""Mount, unmount and list mounts of this mount namespace."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import functools
import os
import re
from pathlib import Path, PurePosixPath
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
_HAS_ENDED = (errno.ENOENT, errno.ESRCH, errno.EINVAL)  # EINVAL for a zombie


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """A file's location independent of mounts: a file system and a path in it."""

    device: str  # MAJOR:MINOR
    path: PurePosixPath


def mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    """Mount *source* on *target*; raises OSError."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    if libc().mount(*texts, ctypes.c_ulong(flags), data) != 0:
        _fail(target)


def unmount(target: Path) -> None:
    """Unmount the topmost mount on *target*, which must not be a link; OSError."""
    if libc().umount2(os.fsencode(target), _UMOUNT_NOFOLLOW) != 0:
        _fail(str(target))


def points() -> Iterator[Path]:
    """Yield the mount points; see proc(5)."""
    for _, point in parsed(Path("/proc/self/mountinfo").read_bytes()):
        yield Path(point)


def parsed(mountinfo: bytes) -> Iterator[tuple[Origin, PurePosixPath]]:
    """Yield the origin and the mount point of each line of *mountinfo*."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if len(fields) > 5:
            root, point = (PurePosixPath(os.fsdecode(unescaped(field))) for field in fields[3:5])
            yield Origin(os.fsdecode(fields[2]), root), point


def of_process(process: Path) -> bytes | None:
    """Return the mountinfo of a *process*, such as /proc/7; None if it has ended.

    Read from its first thread, or from another if that has ended.
    """
    try:
        for thread in (process, *(process / "task").iterdir()):
            try:
                return (thread / "mountinfo").read_bytes()
            except OSError as exc:
                if exc.errno not in _HAS_ENDED:
                    raise
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


def origin(path: Path) -> Origin:
    """Return the location of *path* below all mounts; OSError."""
    real = PurePosixPath(os.path.realpath(path))
    found = Origin("", real)
    depth = -1
    for origin, point in parsed(Path("/proc/self/mountinfo").read_bytes()):
        if real.is_relative_to(point) and len(point.parts) >= depth:  # the last mount is on top
            found, depth = (
                Origin(origin.device, origin.path / real.relative_to(point)),
                len(point.parts),
            )
    return found


def unescaped(field: bytes) -> bytes:
    """Decode the octal escapes of a mountinfo field."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8),)), field)


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library, which keeps errno for :func:`ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


def _fail(target: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), target)
