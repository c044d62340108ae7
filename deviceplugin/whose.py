"""Which container a process of the node is in: told by the kernel, whatever the runtime is.

A process of a grant has the grant's folder mounted, so its mounts say which. Of any other, the
path of its cgroup names the pod and the container, in the forms of kubelet's two drivers and of
containerd, CRI-O and Docker, on cgroup v1 and v2. Both need the node's own /proc (hostPID).
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pyvgpu import mounts
from pyvgpu.deviceplugin import containers, grants

if TYPE_CHECKING:
    from collections.abc import Iterator

# A uid, with hyphens or as systemd's units have it; of a static pod the digest of its file.
_POD = re.compile(
    r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_CONTAINER = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?")
_PROC = Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True)
class Whose:
    """Whom a process belongs to; all empty: to nobody in a container."""

    grant: str = ""  # its id
    pod: str = ""  # its uid
    container: str = ""  # its id, as the runtime has it

    @property
    def inside(self) -> bool:
        """Whether the process is in a container at all."""
        return bool(self.grant or self.pod)


def whose(pid: int, folder: Path, proc: Path = _PROC) -> Whose | None:
    """Return whom process *pid* belongs to, grants being in *folder*; None if it has ended."""
    try:
        mounted = (proc / str(pid) / "mountinfo").read_bytes()
        placed = (proc / str(pid) / "cgroup").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as exc:
        if exc.errno == errno.EINVAL:  # a zombie's answer
            return None
        raise
    pod, container = of_cgroup(placed.decode("utf-8", "replace"))
    return Whose(grant_of(mounted, folder.name), pod, container)


def grant_of(mountinfo: bytes, book: str) -> str:
    """Return the grant whose folder is mounted, from a folder called *book*; empty if none is.

    What is mounted where a quota is looked for must be a folder of the node that is called so:
    its path within its file system ends in the name of the book and the id.
    """
    found = ""
    for root, point in _mounts(mountinfo):
        if point == containers.QUOTA:  # of several the last lies on top
            path = PurePosixPath(root)
            found = path.name if path.parent.name == book and grants.is_id(path.name) else ""
    return found


def of_cgroup(text: str) -> tuple[str, str]:
    """Return the pod's uid and the container's id that /proc/PID/cgroup names, if it does."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        # kubelet with systemd's driver over a containerd without it: PREFIX:cri-containerd:ID
        parts = path.replace(":cri-containerd:", "/").split("/")
        for at, part in enumerate(parts):
            pod = _POD.fullmatch(part)
            if pod is None:
                continue
            container = _CONTAINER.fullmatch(parts[at + 1]) if at + 1 < len(parts) else None
            return _uid(pod[1]), container[1] if container else ""
    return "", ""


def _uid(text: str) -> str:
    return text.replace("_", "-")


def _mounts(mountinfo: bytes) -> Iterator[tuple[str, str]]:
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if len(fields) > 5:
            root, point = (os.fsdecode(mounts.unescaped(field)) for field in fields[3:5])
            yield root, point
