"""Give a file another place: hard link, else reflink, else copy; knows nothing of mirrors."""

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

# What says that this way is closed between these two files, and the next may be open: another
# file system, one that cannot, or a file of somebody else (fs.protected_hardlinks).
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
    """Make *target*, which must not exist, a file with the content of *source*.

    The cheapest way that the file systems allow; *advance* is told the bytes as they are
    copied, and nothing where none need to be.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as exc:
        if exc.errno not in _NEXT_WAY:
            raise
        place_apart(source, target, advance)


def place_apart(source: Path, target: Path, advance: Callable[[int], None] | None = None) -> None:
    """Like :func:`place`, but never the same inode: a later write to *source* changes nothing.

    The file is read-only, executable where *source* is, and on the disk when this returns.
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
    """Make *other*, in the same folder, one more name of *path*: a link, hard if that goes."""
    try:
        other.hardlink_to(path)
    except OSError as exc:
        if exc.errno not in _NEXT_WAY:
            raise
        other.symlink_to(path.name)


def reflink(source: int, target: int) -> bool:
    """Let the open file *target* share the blocks of *source*; false if they cannot."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as exc:
        if exc.errno not in _NEXT_WAY:
            raise
        return False
    return True
