"""Map a process of the node to its container, from /proc, for any container runtime.

A process of a grant has the grant's folder mounted, so its mounts identify the grant. For others,
the cgroup path names the pod and the container, in the formats of kubelet's two cgroup drivers and
of containerd, CRI-O and Docker, on cgroup v1 and v2. Both need the node's own /proc (hostPID).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path, PurePosixPath

from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.machine import container_runtimes, mounts

# A uid, with hyphens or with systemd's underscores; for a static pod the digest of its file.
_POD = re.compile(
    r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_SCOPES = "|".join(container_runtimes.SCOPES)
_CONTAINER = re.compile(rf"(?:(?:{_SCOPES})-)?([0-9a-f]{{64}})(?:\.scope)?")
_SEPARATED = re.compile(rf":(?:{_SCOPES}):")
_PROC = Path("/proc")
_QUOTA = PurePosixPath(cdi_edits.QUOTA)


@dataclasses.dataclass(frozen=True, slots=True)
class Whose:
    """The grant, pod and container of a process; all empty: it is in no container."""

    grant: str = ""  # its id
    pod: str = ""  # its uid
    container: str = ""  # its id, as the runtime has it

    @property
    def inside(self) -> bool:
        """Whether the process is in a container at all."""
        return bool(self.grant or self.pod)


def whose(pid: int, registry: mounts.Origin, proc: Path = _PROC) -> Whose | None:
    """Return the owner of process *pid*, with grants in *registry*; None if it has ended."""
    process = proc / str(pid)
    try:
        mounted = mounts.of_process(process)
        placed = (process / "cgroup").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if mounted is None:
        return None
    pod, container = of_cgroup(placed.decode("utf-8", "replace"))
    return Whose(grant_of(mounted, registry), pod, container)


def grant_of(mountinfo: bytes, registry: mounts.Origin) -> str:
    """Return the grant whose folder in *registry* is mounted; empty if none is.

    The mount at the quota's path must be that very folder of the node: a volume of the pod could
    be mounted there under the same name.
    """
    found = ""
    for origin, point in mounts.parsed(mountinfo):
        if point == _QUOTA:  # of several mounts the last is on top
            ours = (origin.device, origin.path.parent) == (registry.device, registry.path)
            found = origin.path.name if ours and grants.is_id(origin.path.name) else ""
    return found


def of_cgroup(text: str) -> tuple[str, str]:
    """Return the pod's uid and the container's id that /proc/PID/cgroup names, if it does."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        # kubelet with the systemd driver, the runtime without it: PREFIX:cri-containerd:ID
        parts = _SEPARATED.sub("/", path).split("/")
        for at, part in enumerate(parts):
            pod = _POD.fullmatch(part)
            if pod is None:
                continue
            container = _CONTAINER.fullmatch(parts[at + 1]) if at + 1 < len(parts) else None
            return _uid(pod[1]), container[1] if container else ""
    return "", ""


def container_folder(cgroup: Path) -> Path:
    """Return the cgroup folder of the container that a process in *cgroup* is in.

    A container may have sub-cgroups, as with systemd inside; *cgroup* itself if no part of it
    names a container.
    """
    for parent in (*reversed(cgroup.parents), cgroup):
        if _CONTAINER.fullmatch(parent.name.rpartition(":")[2]):
            return parent
    return cgroup


def _uid(text: str) -> str:
    return text.replace("_", "-")
