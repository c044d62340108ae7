"""Mounts small file systems, to test full disks and read-only ones."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest
import rights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB; skip the test if that is not permitted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"{rights.WANTING} a file system: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """Fill the file system with a file called `other`."""
    size = 1 << 20
    with (folder / "other").open("wb", buffering=0) as other:
        while size:
            try:
                other.write(bytes(size))
            except OSError:
                size //= 2


def empty(folder: Path) -> None:
    """Free the space again."""
    (folder / "other").unlink()


def allow_writing(folder: Path, *, allowed: bool) -> None:
    """Remount the file system writable or read-only."""
    how = "remount,rw" if allowed else "remount,ro"
    subprocess.run(["mount", "-o", how, folder], check=True)
