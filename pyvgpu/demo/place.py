"""A machine of the demonstration's own, in a folder that goes with it.

The simulated device keeps its bytes in files, best in memory. /dev/shm may be as small as
64 MiB (containers), so the first place with room counts, and where none has room the tenants
compute in less.
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
from pyvgpu.demo.facts import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PREFIX = "pyvgpu-demo-"
PLACES = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - a private folder is made in them
WORKING_BYTES = 120 * MIB  # what the steady tenant computes in, where there is room
UNIT = 12 * MIB  # so that it can be cut into three
LEAST_BYTES = UNIT
YOUNG_SECONDS = 60
SPARE_BYTES = 64 * MIB  # for the simulator's own state


def choose(rooms: Sequence[tuple[Path, int]]) -> tuple[Path, int]:
    """Return the place to use, of places with their free bytes, and what to compute in."""
    for place, free in rooms:
        if free >= WORKING_BYTES + SPARE_BYTES:
            return place, WORKING_BYTES
    place, free = max(rooms, key=lambda room: room[1], default=(Path(), 0))
    working = (free - SPARE_BYTES) // 2 // UNIT * UNIT
    if working < LEAST_BYTES:
        least = (2 * LEAST_BYTES + SPARE_BYTES) // MIB
        raise errors.UnavailableError(
            f"no folder with {least} MiB free for the simulated device; looked in "
            f"{', '.join(str(place) for place, _ in rooms) or 'none that can be written to'}; "
            "name another in TMPDIR"
        )
    return place, working


@contextlib.contextmanager
def private_folder() -> Iterator[tuple[Path, int]]:
    """Make a folder and remove it in the end; gives it and what to compute in."""
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
    """Return how much a file in *folder* may still take, by its disk and by memory."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if folder == Path("/dev/shm"):  # noqa: S108 - no disk but memory, which may be less
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
    """Remove what demonstrations of ours that were killed have left."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # One that is just being made is not locked yet: it is young.
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and _is_old(found):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _is_old(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > YOUNG_SECONDS
