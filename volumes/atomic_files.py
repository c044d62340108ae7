"""Atomic creation and replacement of files, links and folders; independent of mirrors.

Unfinished and doomed entries have names that begin with ``.pyvgpu-``. A process that holds the
lock of the folder may remove them: a process that died left them.
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

FORSAKEN_SECONDS = 60.0  # after which no process is still writing a draft

_BEGINNING = ".pyvgpu-"  # the user may choose any folder: only entries with this prefix are ours


def new(folder: Path) -> Path:
    """Return a new temporary name in *folder*, for an unfinished or a doomed entry."""
    return folder / f"{_BEGINNING}{uuid.uuid4().hex}"


def write(path: Path, content: bytes, *, lasting: bool = True, mode: int = 0o644) -> None:
    """Replace the file *path* atomically: a reader gets either the old or the new content.

    If not *lasting*, the file may be empty after a crash of the node, but writing is faster.
    """
    draft = new(path.parent)
    try:
        with open(draft, "xb", buffering=0) as file:  # noqa: PTH123 - unbuffered
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
    """Point the symbolic link *path* to *target* atomically."""
    draft = new(path.parent)
    draft.symlink_to(target)
    draft.replace(path)
    sync(path.parent)


def publish(draft: Path, folder: Path) -> None:
    """Rename the folder *draft* to its final name, replacing what has that name."""
    if os.path.lexists(folder):
        old = new(folder.parent)
        folder.rename(old)
        draft.rename(folder)
        discard(old)
    else:
        draft.rename(folder)
    sync(folder.parent)


def discard(path: Path) -> None:
    """Remove *path*, of any kind, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def found(folder: Path) -> tuple[Path, ...]:
    """Return the drafts in *folder*."""
    return tuple(folder.glob(f"{_BEGINNING}*"))


def forsaken(folder: Path) -> tuple[Path, ...]:
    """Return abandoned drafts in a *folder* with several writers, by their age."""
    oldest = time.time() - FORSAKEN_SECONDS
    found_there = []
    for path in found(folder):
        with contextlib.suppress(OSError):  # finished, or gone
            if path.lstat().st_mtime < oldest:
                found_there.append(path)
    return tuple(found_there)


def make(folder: Path) -> None:
    """Create a folder that all users may read, whatever our umask."""
    folder.mkdir()
    folder.chmod(0o755)


@contextlib.contextmanager
def locked(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the exclusive lock of *folder*; the kernel releases it when the holder dies."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / "lock", flags, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    """Flush the directory entries of *folder* to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
