"""Container runtimes: where each listens for CRI calls, and how it names a container's cgroup."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime."""

    name: str
    scope: str  # before the container's id in the name of its cgroup, with the systemd driver
    socket: str = ""  # the usual path; empty: it serves no CRI itself


RUNTIMES = (  # the usual one first
    Runtime("containerd", "cri-containerd", "/run/containerd/containerd.sock"),
    Runtime("containerd of k3s", "cri-containerd", "/run/k3s/containerd/containerd.sock"),
    Runtime("CRI-O", "crio", "/run/crio/crio.sock"),
    Runtime("Docker", "docker"),
    Runtime("Podman", "libpod"),
)
SOCKETS = tuple(runtime.socket for runtime in RUNTIMES if runtime.socket)
SCOPES = tuple(dict.fromkeys(runtime.scope for runtime in RUNTIMES))
