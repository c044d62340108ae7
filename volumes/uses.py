"""Tell which trees of a store somebody uses: a container that mounts one, a process, a lock.

A container's mount is found in the mount tables of its processes, so it counts whatever runtime
made it and whoever is inside. A process counts that has mapped a file by the path of a tree, as
far as we may look. A shared lock (flock) on a tree's folder keeps it for whoever will need it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, locks, mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROC = Path("/proc")
_KERNEL_THREADS = 2  # the pid of kthreadd, where the pids are the machine's own
_HAS_ENDED = (errno.ENOENT, errno.ESRCH, errno.EINVAL)  # the last is a zombie's answer


@dataclasses.dataclass(frozen=True, slots=True)
class _Mount:
    """What a line of mountinfo says; see proc(5)."""

    device: str  # major:minor of the file system
    root: str  # of the mount, within the file system
    point: str


class UnseenError(errors.PermissionDeniedError):
    """Who uses a tree cannot be told from here."""

    def __init__(self) -> None:
        super().__init__(
            "not all processes of this machine can be seen; in a container that takes its PID "
            "namespace (hostPID: true, or --pid host)"
        )


def used(trees: Iterable[Path], proc: Path = _PROC) -> frozenset[Path]:
    """Return those of *trees* that are in use; UnseenError if not all processes can be seen."""
    real = {tree: tree.resolve() for tree in trees}
    found = {tree for tree in real if locks.is_flocked(tree)}
    try:
        if not sees_all(proc):
            raise UnseenError
        listed = list(_mounts(proc / "self"))
        sought = {tree: _within_file_system(path, listed) for tree, path in real.items()}
        for process in proc.iterdir():
            if process.name.isdecimal():
                found |= _used_by(process, real, sought)
    except OSError as exc:
        raise UnseenError from exc
    return frozenset(found)


def sees_all(proc: Path = _PROC) -> bool:
    """Return whether pids are the machine's own here, and all processes are seen."""
    try:
        return (proc / f"{_KERNEL_THREADS}/comm").read_text() == "kthreadd\n"
    except OSError:
        return False


def _used_by(
    process: Path, real: dict[Path, Path], sought: dict[Path, tuple[str, str]]
) -> set[Path]:
    try:
        listed = {(mount.device, mount.root) for mount in _mounts(process)}
    except OSError as exc:
        if exc.errno in _HAS_ENDED:
            return set()
        raise
    maps = ""
    # Whoever may not look (no CAP_SYS_PTRACE) sees the containers all the same: by their mounts.
    with contextlib.suppress(OSError):
        maps = os.fsdecode((process / "maps").read_bytes())
    found = {tree for tree, path in real.items() if f" {path}/" in maps}
    for tree, (device, path) in sought.items():
        if any(at == device and _is_in(root, path) for at, root in listed):
            found.add(tree)
    return found


def _within_file_system(path: Path, listed: Iterable[_Mount]) -> tuple[str, str]:
    """Return the file system of *path*, and where in it that is."""
    over = [mount for mount in listed if _is_in(str(path), mount.point)]
    mount = max(reversed(over), key=lambda mount: len(mount.point))  # of equal ones the last
    inner = Path(mount.root) / path.relative_to(mount.point)
    return mount.device, str(inner)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mounts(process: Path) -> Iterator[_Mount]:
    for line in (process / "mountinfo").read_bytes().splitlines():
        fields = [os.fsdecode(mounts.unescaped(field)) for field in line.split(b" ")[:5]]
        yield _Mount(fields[2], fields[3], fields[4])
