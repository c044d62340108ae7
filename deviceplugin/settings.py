"""Where things are on the node, and how it is shared: what an administrator may choose."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pyvgpu.allocator import facts
from pyvgpu.deviceplugin import granting, health


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All of it; each field's default is that of the command's option."""

    node: str
    state: Path = Path("/var/lib/pyvgpu")
    run: Path = Path("/run/pyvgpu-agent")  # in memory: a launch must not wait for a disk
    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    specifications: Path = Path("/var/run/cdi")
    driver_root: Path = Path("/")
    unit: int = 256 << 20  # bytes of one vmemory
    packing: facts.Packing = facts.Packing.BINPACK
    bind_seconds: float = granting.BIND_SECONDS
    kubeconfig: Path | None = None
    require_cdi: bool = True  # else containers see the nodes of devices that are not theirs
    health: health.Rules = dataclasses.field(default_factory=health.Rules)
