"""Cgroups: their mount points, and the cgroup of a process.

Without the name of a controller of cgroup v1 all of this is about cgroup v2.

See cgroups(7) and the kernel's admin-guide/cgroup-v2. Nothing here needs a controller.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path, PurePosixPath

from pyvgpu.machine import mounts

_TYPE, _TYPE_V1 = b"cgroup2", b"cgroup"
_PROCESSES = "cgroup.procs"
_PROC = Path("/proc")


def mount(controller: str = "") -> tuple[PurePosixPath, Path] | None:
    """Return the mounted cgroup, relative to this process's cgroup namespace, and its mount point.

    Of several mounts the one that shows the most: a node agent sees its own and, if it is mounted,
    the node's, whose path begins with one ``..`` for each level above. None: there is none.
    """
    found = None
    for line in (_PROC / "self/mountinfo").read_bytes().splitlines():
        before, _, behind = line.partition(b" - ")
        kind, *_, options = behind.split()
        of_v1 = kind == _TYPE_V1 and controller.encode() in options.split(b",")
        if of_v1 if controller else kind == _TYPE:
            ((origin, point),) = mounts.parsed(before)
            if found is None or _ups(origin.path) >= _ups(found[0]):
                found = origin.path, Path(point)
    return found


def of_process(pid: int | None = None, controller: str = "") -> Path | None:
    """Return the folder of a process's cgroup; without a *pid* that of this process.

    None: the process has ended, or no mount shows its cgroup.
    """
    try:
        text = (_PROC / ("self" if pid is None else str(pid)) / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    lines = (line.split(":", 2) for line in text.splitlines())
    placed = next((path for _, held, path in lines if controller in held.split(",")), None)
    found = mount(controller)
    return None if placed is None or found is None else folder(PurePosixPath(placed), *found)


def folder(placed: PurePosixPath, top: PurePosixPath, point: Path) -> Path | None:
    """Return the folder of the cgroup *placed*, if *top* is mounted on *point*.

    Both are relative to this process's cgroup namespace: a path above it begins with ``..``.
    """
    if not _ups(top):
        shown = placed.is_relative_to(top) and not _ups(placed)
        return point / placed.relative_to(top) if shown else None
    below = _ups(top) - _ups(placed)
    if below < 0 or len(top.parts) > _ups(top) + 1:
        return None
    own = _own(point)
    if own is None or len(own.parts) < below:
        return None
    return point.joinpath(*own.parts[:below], *placed.parts[_ups(placed) + 1 :])


def join(cgroup: Path) -> None:
    """Move this process, and its future children, into the cgroup with this folder; OSError."""
    with open(cgroup / _PROCESSES, "wb", buffering=0) as file:  # noqa: PTH123 - unbuffered
        file.write(b"0")


def remove(cgroup: Path) -> bool:
    """Remove a cgroup without processes and children; return whether it is gone."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


def _ups(path: PurePosixPath) -> int:
    return path.parts.count("..")


@functools.cache
def _own(point: Path) -> PurePosixPath | None:
    """Return this process's own cgroup below *point*; needs the node's pid namespace.

    /proc hides the names of the cgroups above a cgroup namespace.
    """
    own = str(os.getpid())
    for path, _, _ in os.walk(point):
        with contextlib.suppress(OSError):
            if own in (Path(path) / _PROCESSES).read_text().split():
                return PurePosixPath(path).relative_to(point)
    return None
