"""Host memory that device memory of suspended processes needs, and whether it is there.

The driver puts it into the processes themselves, so it counts in their cgroups' memory limits.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.machine import cgroups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARGIN_BYTES = 256 << 20  # of the driver, for each process, beyond the device memory
_NO_LIMIT = "max"
_CONTROLLER = "memory"  # of cgroup v1
_FILES = (  # the limit, the usage, and the name of cached file contents in memory.stat
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # cgroup v1
)


@dataclasses.dataclass(frozen=True, slots=True)
class HostLimit:
    """Host memory that is left under one limit, for the processes that it holds for."""

    name: str  # of the limit, for messages
    left: int  # bytes
    pids: frozenset[int] | None = None  # None: all


def check(
    needs: Mapping[int, int], limits: Sequence[HostLimit], ceiling: int | None = None
) -> None:
    """Raise UnavailableError, with the numbers, unless all *needs* (bytes by pid) fit."""
    needed = sum(needs.values())
    if ceiling is not None and needed > ceiling:
        raise errors.UnavailableError(
            f"it needs {quantity.format_size(needed)} of host memory, and --host-memory allows "
            f"{quantity.format_size(ceiling)}"
        )
    for limit in limits:
        needed = sum(
            size for pid, size in needs.items() if limit.pids is None or pid in limit.pids
        )
        if needed > limit.left:
            raise errors.UnavailableError(
                f"it needs {quantity.format_size(needed)} of host memory, and {limit.name} has "
                f"{quantity.format_size(max(0, limit.left))} left"
            )


def find(
    pids: Sequence[int], proc: Path = Path("/proc"), *, strict: bool = False
) -> tuple[HostLimit, ...]:
    """Return the limits that hold for the processes: the machine's, and those of their cgroups.

    If it is *strict*, UnavailableError for a process whose cgroup cannot be read.
    """
    found = [HostLimit("the machine (MemAvailable)", _entry(proc / "meminfo", "MemAvailable"))]
    holding: dict[Path, set[int]] = {}
    for pid in pids:
        placed = [
            folder
            for folder in (cgroups.of_process(pid), cgroups.of_process(pid, _CONTROLLER))
            if folder is not None and (folder / "cgroup.procs").exists()
        ]
        if strict and not placed:
            raise errors.UnavailableError(
                f"the memory limit of process {pid} cannot be read: no mount shows its cgroup, "
                "such as the node's /sys/fs/cgroup"
            )
        for cgroup in placed:
            while (cgroup / "cgroup.procs").exists():
                holding.setdefault(cgroup, set()).add(pid)
                cgroup = cgroup.parent
    for folder, members in sorted(holding.items()):
        left = left_in(folder)
        if left is not None:
            found.append(
                HostLimit(f"the memory limit of cgroup {folder}", left, frozenset(members))
            )
    return tuple(found)


def left_in(cgroup: Path) -> int | None:
    """Return the bytes left under the memory limit of a cgroup, by its folder; None: no limit.

    Cached file contents are reclaimed before a limit is reached, so they do not count.
    """
    for limit_file, usage_file, cached_name in _FILES:
        try:
            limit = (cgroup / limit_file).read_text().strip()
            if limit == _NO_LIMIT:
                return None
            used = int((cgroup / usage_file).read_text())
        except (OSError, ValueError):
            continue
        cached = 0
        with contextlib.suppress(OSError, ValueError):
            for line in (cgroup / "memory.stat").read_text().splitlines():
                if line.startswith(f"{cached_name} "):
                    cached = int(line.split()[1])
        return int(limit) - used + cached
    return None


def total(proc: Path = Path("/proc")) -> int:
    """Return the bytes of the machine's memory."""
    return _entry(proc / "meminfo", "MemTotal")


def _entry(meminfo: Path, name: str) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise errors.UnavailableError(f"{meminfo}: has no {name}")
