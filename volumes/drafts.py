"""Put things into a folder whole or not at all; knows nothing of mirrors.

What is not finished, and what is going, has a dotted name that begins with ``.pyvgpu-``. Whoever
holds the lock of the folder may remove it: a maker that died left it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORSAKEN_SECONDS = 60.0  # after which no maker is still at work on a file

_BEGINNING = ".pyvgpu-"  # a user may name any folder: no other dotted name in it is ours


def new(folder: Path) -> Path:
    """Return a new name in *folder* for something that is not to be seen yet, or no more."""
    return folder / f"{_BEGINNING}{uuid.uuid4().hex}"


def write(path: Path, content: bytes, *, lasting: bool = True, mode: int = 0o644) -> None:
    """Let the file *path* have *content* at once: whoever reads it meets the old one or this.

    One that is not *lasting* may be empty after an end of the whole node; it is written sooner.
    """
    draft = new(path.parent)
    try:
        with open(draft, "xb", buffering=0) as file:  # noqa: PTH123 - it is opened only here
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
            os.fchmod(file.fileno(), mode)
            if lasting:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if lasting:
        sync(path.parent)


def link(path: Path, target: str) -> None:
    """Let the symbolic link *path* lead to *target* at once."""
    draft = new(path.parent)
    draft.symlink_to(target)
    draft.replace(path)
    sync(path.parent)


def publish(draft: Path, folder: Path) -> None:
    """Give the folder *draft* its name; what has that name goes."""
    if os.path.lexists(folder):
        old = new(folder.parent)
        folder.rename(old)
        draft.rename(folder)
        discard(old)
    else:
        draft.rename(folder)
    sync(folder.parent)


def discard(path: Path) -> None:
    """Remove *path*, whatever it is, or what can be removed of it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def found(folder: Path) -> tuple[Path, ...]:
    """Return what is unfinished in *folder*."""
    return tuple(folder.glob(f"{_BEGINNING}*"))


def forsaken(folder: Path) -> tuple[Path, ...]:
    """Return what is unfinished in a *folder* of several makers, and has been for too long."""
    oldest = time.time() - FORSAKEN_SECONDS
    found_there = []
    for path in found(folder):
        with contextlib.suppress(OSError):  # it is finished, or gone
            if path.lstat().st_mtime < oldest:
                found_there.append(path)
    return tuple(found_there)


def make(folder: Path) -> None:
    """Make a folder that everybody may look into, whatever the umask of who makes it."""
    folder.mkdir()
    folder.chmod(0o755)


@contextlib.contextmanager
def locked(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Be the only one who changes anything here; the kernel lets go when the holder dies."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / "lock", flags, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    """Have the disk know the names in *folder*."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
