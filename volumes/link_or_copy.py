"""Hard-link a file, else reflink it, else copy it; independent of mirrors."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FICLONE = 0x40049409  # _IOW(0x94, 9, int) of linux/fs.h
_CHUNK = 4 << 20

# Errors after which the next method may work: another file system, one without support, or another
# user's file (fs.protected_hardlinks).
_NEXT_WAY = frozenset(
    (
        errno.EXDEV,
        errno.EPERM,
        errno.EACCES,
        errno.EMLINK,
        errno.EOPNOTSUPP,
        errno.ENOTTY,
        errno.ENOSYS,
        errno.EINVAL,
        errno.EBADF,
        errno.ETXTBSY,
    )
)


def place(source: Path, target: Path, advance: Callable[[int], None] | None = None) -> None:
    """Create *target*, which must not exist, with the content of *source*.

    Uses the cheapest method that the file systems allow; *advance* is called with the bytes as
    they are copied, and not at all if none need to be.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as exc:
        if exc.errno not in _NEXT_WAY:
            raise
        place_apart(source, target, advance)


def place_apart(source: Path, target: Path, advance: Callable[[int], None] | None = None) -> None:
    """Like :func:`place`, but never a hard link: a later write to *source* has no effect.

    The file is read-only, executable if *source* is, and on the disk when this returns.
    """
    with source.open("rb") as reader, target.open("xb") as writer:
        executable = os.fstat(reader.fileno()).st_mode & stat.S_IXUSR
        if not reflink(reader.fileno(), writer.fileno()):
            while chunk := reader.read(_CHUNK):
                writer.write(chunk)
                if advance:
                    advance(len(chunk))
            writer.flush()
        os.fchmod(writer.fileno(), 0o555 if executable else 0o444)
        os.fsync(writer.fileno())


def name_again(path: Path, other: Path) -> None:
    """Make *other*, in the same folder, another name of *path*: a hard link, else a symlink."""
    try:
        other.hardlink_to(path)
    except OSError as exc:
        if exc.errno not in _NEXT_WAY:
            raise
        other.symlink_to(path.name)


def reflink(source: int, target: int) -> bool:
    """Let the open file *target* share the blocks of *source*; false if that is impossible."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as exc:
        if exc.errno not in _NEXT_WAY:
            raise
        return False
    return True
