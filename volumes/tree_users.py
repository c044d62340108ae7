"""Detect which trees of a store are in use: mounted in a container, mapped by a process, locked.

A container's mount is found in the mount tables of its processes, so it counts for any runtime and
any user. A process counts if it has mapped a file below the path of a tree, as far as we may read
that. A shared lock (flock) on a tree's folder reserves it for a later user.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, locks
from pyvgpu.machine import mounts

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = Path("/proc")
_KERNEL_THREADS = 2  # the pid of kthreadd in the machine's own pid namespace


class UnseenError(errors.PermissionDeniedError):
    """We cannot see all processes, so we cannot detect which trees are in use."""

    def __init__(self) -> None:
        super().__init__(
            "not all processes of this machine are visible; in a container this needs the host's "
            "PID namespace (hostPID: true, or --pid host)"
        )


def used(trees: Iterable[Path], proc: Path = _PROC) -> frozenset[Path]:
    """Return those of *trees* that are in use; UnseenError if not all processes are visible."""
    real = {tree: tree.resolve() for tree in trees}
    found = {tree for tree in real if locks.is_flocked(tree)}
    try:
        if not sees_all(proc):
            raise UnseenError
        sought = {tree: mounts.origin(path) for tree, path in real.items()}
        for process in proc.iterdir():
            if process.name.isdecimal():
                found |= _used_by(process, real, sought)
    except OSError as exc:
        raise UnseenError from exc
    return frozenset(found)


def sees_all(proc: Path = _PROC) -> bool:
    """Return whether we are in the machine's own pid namespace and see all processes."""
    try:
        return (proc / f"{_KERNEL_THREADS}/comm").read_text() == "kthreadd\n"
    except OSError:
        return False


def _used_by(
    process: Path, real: dict[Path, Path], sought: dict[Path, mounts.Origin]
) -> set[Path]:
    mounted = mounts.of_process(process)
    if mounted is None:
        return set()
    listed = {origin for origin, _ in mounts.parsed(mounted)}
    maps = ""
    # Without permission to read maps (CAP_SYS_PTRACE) containers still show by their mounts.
    with contextlib.suppress(OSError):
        maps = os.fsdecode((process / "maps").read_bytes())
    found = {tree for tree, path in real.items() if f" {path}/" in maps}
    for tree, at in sought.items():
        if any(
            origin.device == at.device and origin.path.is_relative_to(at.path) for origin in listed
        ):
            found.add(tree)
    return found
