"""Where things are on the node, and how it is shared: what an administrator may choose."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu.allocator import facts
from pyvgpu.deviceplugin import audit, health, surroundings
from pyvgpu.deviceplugin.dra import doors, moving

DEFAULT_LISTEN = "127.0.0.1:5678"  # as gpu-manager's

if TYPE_CHECKING:
    from pyvgpu.volumes import volumeconf


class Placement(enum.Enum):
    """Who chooses the devices of a pod."""

    AGENT = "agent"  # this one, among those of its node
    EXTENDER = "extender"  # the scheduler's, before the pod comes here, under its seal


class Profile(enum.Enum):
    """By whose names pods ask for devices and find them."""

    PYVGPU = "pyvgpu"
    GAIA = "gaia"  # gpu-manager's


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All of it; each field's default is that of the command's option."""

    node: str
    state: Path = Path("/var/lib/pyvgpu")
    run: Path = Path("/run/pyvgpu-agent")  # in memory: a launch must not wait for a disk
    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    registry: Path = Path("/var/lib/kubelet/plugins_registry")  # where it looks for DRA drivers
    drivers: Path = Path("/var/lib/kubelet/plugins")  # where those have their sockets
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    specifications: Path = Path("/var/run/cdi")
    driver_root: Path = Path("/")
    simulate: str = ""  # a machine, such as h100:2, in the place of what the node has
    kubeconfig: Path | None = None
    volumes: tuple[volumeconf.Volume, ...] | None = None  # files that containers get; None: all
    nodes: tuple[str, ...] = ()  # in /dev, which all containers get besides those of devices
    profile: Profile = Profile.PYVGPU
    unit: int = 256 << 20  # bytes of one vmemory
    packing: facts.Packing = facts.Packing.BINPACK
    placement: Placement = Placement.AGENT
    placement_key: Path | None = None  # a file or folder of keys, by which choices are sealed
    doors: doors.Wanted = dataclasses.field(default_factory=doors.Wanted)
    door_seconds: float = moving.SETTLE_SECONDS  # for which a device is closed before it moves
    driver_limits: bool = True  # where the driver can, have it hold containers itself, too
    beside_nvidia: bool = False  # offer devices though NVIDIA's plugin gives out the same ones
    classes: tuple[tuple[str, str], ...] = ()  # parts of devices' names, and what they are called
    shares: bool = True  # else whole devices only
    labels: tuple[tuple[str, str], ...] = ()  # which the node gets
    bind_seconds: float = surroundings.BIND_SECONDS
    node_dev: Path | None = None  # without CDI: the node's own /dev; None: that of driver_root
    require_cdi: bool = True  # else containers see the nodes of devices that are not theirs
    listen: str | None = DEFAULT_LISTEN  # None: nobody is answered
    display: Path | None = None  # a socket, as gpu-manager's; None: there is none
    audit_action: audit.Action = audit.Action.REPORT
    health: health.Rules = dataclasses.field(default_factory=health.Rules)
