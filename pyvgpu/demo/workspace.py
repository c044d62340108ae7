"""Temporary folder for the demonstration's simulated machine.

The simulated device stores its memory in files, preferably on tmpfs. /dev/shm may be as small as
64 MiB (containers), so the first place with enough space is used, and if there is none the tenants
use smaller buffers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.demo.observations import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PREFIX = "pyvgpu-demo-"
PLACES = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - a private folder is created in them
WORKING_BYTES = 120 * MIB  # the steady tenant's buffer, if there is enough space
UNIT = 12 * MIB  # divisible into three parts
LEAST_BYTES = UNIT
YOUNG_SECONDS = 60
SPARE_BYTES = 64 * MIB  # for the simulator's own state


def choose(rooms: Sequence[tuple[Path, int]]) -> tuple[Path, int]:
    """Return the place to use, of places with their free bytes, and the size of the buffer."""
    for place, free in rooms:
        if free >= WORKING_BYTES + SPARE_BYTES:
            return place, WORKING_BYTES
    place, free = max(rooms, key=lambda room: room[1], default=(Path(), 0))
    working = (free - SPARE_BYTES) // 2 // UNIT * UNIT
    if working < LEAST_BYTES:
        least = (2 * LEAST_BYTES + SPARE_BYTES) // MIB
        raise errors.UnavailableError(
            f"no folder with {least} MiB free for the simulated device; searched "
            f"{', '.join(str(place) for place, _ in rooms) or 'no writable folder'}; "
            "set TMPDIR to another"
        )
    return place, working


@contextlib.contextmanager
def private_folder() -> Iterator[tuple[Path, int]]:
    """Create a folder and remove it in the end; yields it and the size of the buffer."""
    place, working = choose(_rooms())
    _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder, working
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Return the space for files in *folder*, limited by its disk and by memory."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if folder == Path("/dev/shm"):  # noqa: S108 - in memory, of which less may be free
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path("/proc/meminfo").read_text(encoding="ascii")
            free = min(free, int(text.split("MemAvailable:")[1].split()[0]) * 1024 - GIB // 2)
    return free


def _rooms() -> list[tuple[Path, int]]:
    rooms = []
    for name in dict.fromkeys((PLACES[0], tempfile.gettempdir(), *PLACES[1:])):
        place = Path(name)
        with contextlib.suppress(OSError):
            if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
                rooms.append((place, free_bytes(place)))
    return rooms


def _sweep(place: Path) -> None:
    """Remove the folders of our killed demonstrations."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # A folder that was created just now is not locked yet: skip young ones.
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and _is_old(found):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _is_old(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > YOUNG_SECONDS
