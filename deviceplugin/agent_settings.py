"""Settings of the agent: paths on the node, and how its devices are shared."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names, oversubscription, quantity
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import allocation_api

# Application errors by NVIDIA's list of Xids: an exception in a kernel, a bad address, a killed
# program, preemption, a video engine's program, a context timeout.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
BIND_SECONDS = 60.0  # for matching a grant to its pod, before the pod is evicted
DEFAULT_LISTEN = "127.0.0.1:5678"  # as gpu-manager's

if TYPE_CHECKING:
    from pyvgpu.volumes import installation


ALL = "all"  # GPUs, in place of their UUIDs


class Placement(enum.Enum):
    """The component that chooses the devices of a pod."""

    AGENT = "agent"  # this agent, among those of its node
    EXTENDER = "extender"  # the scheduler extender, which seals its choice before the pod is bound


class AuditAction(enum.StrEnum):
    """The audit's response to a finding."""

    REPORT = "report"  # report it
    KILL = "kill"  # report it, and kill the process


class Profile(enum.Enum):
    """The names of resources and paths that pods use."""

    PYVGPU = "pyvgpu"
    GAIA = "gaia"  # gpu-manager's


@dataclasses.dataclass(frozen=True, slots=True)
class HealthRules:
    """When a device is unhealthy, and when healthy again."""

    ignored_xids: frozenset[int] = APPLICATION_XIDS
    recover_seconds: float = 60.0  # without any error


@dataclasses.dataclass(frozen=True, slots=True)
class TimeSlicing:
    """How devices that are allocated by time slices are offered."""

    replicas: int = 0  # containers for each device; 0: no device is offered so
    resource: str = names.GPU_SHARED_RESOURCE
    same_device: bool = False  # a container may get several slices of one device

    @property
    def is_foreign(self) -> bool:
        """Whether the resource's name is one that another device plugin may serve."""
        return not self.resource.startswith(f"{names.DOMAIN}/")


@dataclasses.dataclass(frozen=True, slots=True)
class HostMemory:
    """The part of a node's memory that its suspended pods may take together."""

    percent: int = 50  # of the node's memory
    size: int | None = None  # bytes, in place of the percentage

    def limit(self, total: int) -> int:
        """Return it in bytes, on a node with *total* bytes of memory."""
        return total * self.percent // 100 if self.size is None else self.size


@dataclasses.dataclass(frozen=True, slots=True)
class Oversubscription:
    """How far the reservations of a device may exceed it, and what moves its pods."""

    ratio: float  # of all reservations to the device, above 1
    rules: oversubscription.MoveRules = dataclasses.field(
        default_factory=oversubscription.MoveRules
    )
    wait_seconds: float = 0.0  # for room, before a pod that starts is deleted; 0: without end

    @property
    def percent(self) -> int:
        """The ratio in percent: 1.15 is 115, although 1.15 * 100 is less."""
        return round(self.ratio * 100)


@dataclasses.dataclass(frozen=True, slots=True)
class AgentSettings:
    """All settings; each field's default is that of the command's option."""

    node: str
    state: Path = Path("/var/lib/pyvgpu")
    run: Path = Path("/run/pyvgpu-agent")  # in memory: a launch must not wait for a disk
    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    registry: Path = Path("/var/lib/kubelet/plugins_registry")  # where kubelet finds DRA drivers
    drivers: Path = Path("/var/lib/kubelet/plugins")  # for the sockets of DRA drivers
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    specifications: Path = Path("/var/run/cdi")
    driver_root: Path = Path("/")
    simulate: str = ""  # a simulated machine, such as h100:2, instead of the node's devices
    kubeconfig: Path | None = None
    node_config: Path | None = None  # folder of options for single nodes; None: no such options
    volumes: tuple[installation.ConfiguredVolume, ...] | None = (
        None  # files that containers get; None: all
    )
    nodes: tuple[str, ...] = ()  # in /dev, for all containers besides those of devices
    profile: Profile = Profile.PYVGPU
    unit: int = 256 << 20  # bytes of one vmemory
    packing: datatypes.Packing = datatypes.Packing.BINPACK
    placement: Placement = Placement.AGENT
    placement_key: Path | None = None  # file or folder of keys that seal the scheduler's choices
    apis: allocation_api.Configured = dataclasses.field(default_factory=allocation_api.Configured)
    switch_seconds: float = (
        allocation_api.SETTLE_SECONDS
    )  # for which a device is closed before it moves
    time_slicing: TimeSlicing = dataclasses.field(default_factory=TimeSlicing)
    # UUIDs of GPUs in MIG mode on which pods get instances, or ALL; none: on no GPU.
    dynamic_mig: frozenset[str] = frozenset()
    # UUIDs of devices that MPS divides, or ALL; none: no device.
    mps: frozenset[str] = frozenset()
    suspend: bool = False  # suspend pods whose annotations request it
    suspend_host_memory: HostMemory = dataclasses.field(default_factory=HostMemory)
    oversubscription: Oversubscription | None = None  # None: reservations never exceed a device
    driver_limits: bool = True  # also let the driver enforce memory limits, where it can
    beside_nvidia: bool = False  # offer devices though NVIDIA's plugin gives out the same ones
    startup_taint: str = ""  # key of a taint to remove from the node once ready; empty: none
    classes: tuple[tuple[str, str], ...] = ()  # parts of devices' names, and their class
    shares: bool = True  # else whole devices only
    labels: tuple[tuple[str, str], ...] = ()  # set on the node
    bind_seconds: float = BIND_SECONDS
    node_dev: Path | None = None  # without CDI: the node's own /dev; None: that of driver_root
    require_cdi: bool = True  # else containers see the nodes of devices that are not theirs
    listen: str | None = DEFAULT_LISTEN  # None: no HTTP server
    display: Path | None = None  # socket of gpu-manager's gRPC service; None: none
    audit_action: AuditAction = AuditAction.REPORT
    health: HealthRules = dataclasses.field(default_factory=HealthRules)


def read_host_memory(text: str, option: str) -> HostMemory:
    """Return the host memory for suspended pods: a percentage or a size; UsageError."""
    if not text.endswith("%"):
        return HostMemory(size=quantity.parse_size(text, option))
    number = text[:-1]
    if not (
        number.isascii() and number.isdigit() and len(number) <= 3 and 1 <= int(number) <= 100
    ):
        raise errors.UsageError(
            f"{option} {text[:40]!r}: must be from 1% to 100% of the node's memory, or a size, "
            "such as 50% or 64GiB"
        )
    return HostMemory(int(number))


def read_dynamic_mig(text: str, option: str) -> frozenset[str]:
    """Return the GPUs on which pods get MIG instances: UUIDs, ALL, or nothing; UsageError."""
    return _read_devices(text, option, "GPUs", ("GPU-",))


def read_mps(text: str, option: str) -> frozenset[str]:
    """Return the devices that MPS divides: UUIDs, ALL, or nothing; UsageError."""
    return _read_devices(text, option, "devices", ("GPU-", names.MIG_UUID_PREFIX))


def _read_devices(
    text: str, option: str, what: str, beginnings: tuple[str, ...]
) -> frozenset[str]:
    if text == "none":
        return frozenset()
    found = frozenset(word.strip() for word in text.split(","))
    if (ALL in found and len(found) > 1) or not all(
        word == ALL or word.startswith(beginnings) for word in found
    ):
        raise errors.UsageError(
            f"{option} {text!r}: must be none, all, or UUIDs of {what} separated by commas, "
            "such as GPU-6f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
        )
    return found
