"""Leave the cgroups of a Slurm step.

The process that holds a job's quota outlives the step whose slurmstepd started it; in the step's
cgroups it would keep Slurm from removing them, and be killed with the step. It moves to the cgroup
above those of jobs; with cgroup v2, where only leaves have processes, to Slurm's own leaf there.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path, PurePosixPath

_OF_JOB = re.compile(r"(job|uid)_[0-9]+")
_LEAF = "system"  # Slurm's leaf beside its jobs, with cgroup v2
_ROOT = Path("/sys/fs/cgroup")


def above_jobs(path: PurePosixPath) -> PurePosixPath | None:
    """Return the cgroup above those of Slurm's jobs and users; None if *path* is in none."""
    for index, part in enumerate(path.parts):
        if _OF_JOB.fullmatch(part):
            return PurePosixPath(*path.parts[:index])
    return None


def leave(cgroup_file: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> None:
    """Move this process out of the step's cgroups, as far as it may."""
    for line in cgroup_file.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        above = above_jobs(PurePosixPath(path))
        if above is None:
            continue
        mounted = root / controllers.removeprefix("name=")  # empty with cgroup v2
        if not controllers and (root / "unified").is_dir():
            mounted = root / "unified"
        folder = mounted / above.relative_to("/")
        leaf = folder / _LEAF
        with contextlib.suppress(OSError):
            ((leaf if leaf.is_dir() else folder) / "cgroup.procs").write_text("0")
