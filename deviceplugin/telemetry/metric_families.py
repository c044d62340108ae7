"""Prometheus metrics of the agent: name and help of each.

A container's series exist from its grant until its pod is gone, and are 0 while it uses nothing.
Allocations are read at the scrape; usage is of the last poll of ``usage``.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import pyvgpu
from pyvgpu import quantity, quota
from pyvgpu.allocator import isolation
from pyvgpu.deviceplugin.audit import quota_audit
from pyvgpu.deviceplugin.kubelet import call_timing
from pyvgpu.deviceplugin.telemetry import usage
from pyvgpu.http import exposition, metric_text
from pyvgpu.http.metric_text import MetricText
from pyvgpu.machine import memory_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.devices.health import ProbeResult
    from pyvgpu.deviceplugin.grants import Grant, events
    from pyvgpu.run.suspend_operation import MovedMemory

CALLS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)  # seconds

SUSPENSIONS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)  # seconds

CONTAINER_LABELS = ("namespace", "pod", "container", "uuid")
DEVICE_LABELS = ("uuid", "index", "model")
CONTAINER_MEANS_LABELS = (*CONTAINER_LABELS, "isolation")
DEVICE_MEANS_LABELS = (*DEVICE_LABELS, "isolation")


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerSample:
    """A container's share and usage of one device, for its metrics."""

    namespace: str
    pod: str
    container: str
    uuid: str
    vcore: float  # ratio of the device's time
    limit: float  # ratio that it may reach
    vmemory: int  # bytes
    use: usage.Use
    driver_limit: int = 0  # bytes that the driver itself enforces; 0: no limit
    to_host_bytes: int = 0  # moved by suspensions, sum
    to_device_bytes: int = 0  # by resumptions, sum
    means: isolation.Means = isolation.Means.QUOTA

    @property
    def labels(self) -> tuple[str, ...]:
        """As in CONTAINER_LABELS."""
        return self.namespace, self.pod, self.container, self.uuid


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSample:
    """The state of one device, for its metrics."""

    device: datatypes.NodeDevice
    answer: ProbeResult  # NVML's last
    parts: Sequence[ContainerSample]  # containers' shares of it

    @property
    def labels(self) -> tuple[str, ...]:
        """As in DEVICE_LABELS."""
        return self.device.uuid, str(self.device.index), self.device.model


CONTAINER: tuple[tuple[MetricText, Callable[[ContainerSample], float]], ...] = (
    (
        MetricText(
            "pyvgpu_container_vcore_allocated_ratio",
            "Fraction of a device's time that is allocated to a container, 0 to 1.",
        ),
        lambda share: share.vcore,
    ),
    (
        MetricText(
            "pyvgpu_container_vcore_limit_ratio",
            "Fraction of a device's time that a container may use while others are idle, 0 to 1.",
        ),
        lambda share: share.limit,
    ),
    (
        MetricText(
            "pyvgpu_container_vcore_used_ratio",
            "Fraction of a device's time that a container used in the last seconds, 0 to 1.",
        ),
        lambda share: share.use.ratio,
    ),
    (
        MetricText(
            "pyvgpu_container_busy_seconds_total", "Device time that a container has used."
        ),
        lambda share: share.use.busy_seconds,
    ),
    (
        MetricText(
            "pyvgpu_container_memory_allocated_bytes",
            "Device memory that is allocated to a container.",
        ),
        lambda share: share.vmemory,
    ),
    (
        MetricText(
            "pyvgpu_container_memory_driver_limit_bytes",
            "Device memory limit of a container that the driver itself enforces; 0: none, the "
            "shim alone enforces the quota.",
        ),
        lambda share: share.driver_limit,
    ),
    (
        MetricText("pyvgpu_container_memory_used_bytes", "Device memory that a container holds."),
        lambda share: share.use.held_bytes,
    ),
    (
        MetricText(
            "pyvgpu_container_refused_allocations_total",
            "Allocations of a container that were refused because they exceeded its quota.",
        ),
        lambda share: share.use.refused,
    ),
    (
        MetricText(
            "pyvgpu_container_throttled_launches_total",
            "Launches of a container that were throttled.",
        ),
        lambda share: share.use.waits,
    ),
    (
        MetricText(
            "pyvgpu_container_throttled_seconds_total",
            "Total time for which launches of a container were throttled.",
        ),
        lambda share: share.use.waited_seconds,
    ),
    (
        MetricText("pyvgpu_container_processes", "Processes of a container that use its devices."),
        lambda share: share.use.processes,
    ),
    (
        MetricText("pyvgpu_container_suspended", "1 while a container is suspended."),
        lambda share: share.use.suspended,
    ),
    (
        MetricText(
            "pyvgpu_container_memory_host_bytes",
            "Device memory of a container that is in host memory while it is suspended.",
        ),
        lambda share: share.use.host_bytes,
    ),
    (
        MetricText(
            "pyvgpu_container_suspended_seconds_total",
            "Time for which a container has been suspended, to some seconds.",
        ),
        lambda share: share.use.suspended_seconds,
    ),
    (
        MetricText(
            "pyvgpu_container_moved_to_host_bytes_total",
            "Memory of a container that suspensions have moved from the device to the host.",
        ),
        lambda share: share.to_host_bytes,
    ),
    (
        MetricText(
            "pyvgpu_container_moved_to_device_bytes_total",
            "Memory of a container that resumptions have moved from the host to the device.",
        ),
        lambda share: share.to_device_bytes,
    ),
)

DEVICE: tuple[tuple[MetricText, Callable[[DeviceSample], float | None]], ...] = (
    (
        MetricText("pyvgpu_device_memory_bytes", "Total memory of a device."),
        lambda sample: sample.device.memory_bytes,
    ),
    (
        MetricText("pyvgpu_device_memory_allocated_bytes", "Device memory that is allocated."),
        lambda sample: sum(part.vmemory for part in sample.parts),
    ),
    (
        MetricText(
            "pyvgpu_device_memory_used_bytes",
            "Device memory in use by all processes, as NVML reports it.",
        ),
        lambda sample: sample.answer.used_bytes,
    ),
    (
        MetricText(
            "pyvgpu_device_vcore_allocated_ratio", "Fraction of a device's time that is allocated."
        ),
        lambda sample: sum(part.vcore for part in sample.parts),
    ),
    (
        MetricText(
            "pyvgpu_device_used_ratio",
            "GPU utilization over NVML's last sample period, 0 to 1, all processes; not with MIG, "
            "where NVML has none.",
        ),
        lambda sample: sample.answer.busy,
    ),
    (
        MetricText("pyvgpu_device_containers", "Containers that have a share of a device."),
        lambda sample: len(sample.parts),
    ),
    (
        MetricText(
            "pyvgpu_device_healthy", "1 if a device is healthy; 0 if not, or without driver."
        ),
        lambda sample: not sample.device.unhealthy,
    ),
    (
        MetricText(
            "pyvgpu_device_reservable_ratio",
            "What all shares of a device may reserve, relative to its memory and time; above 1: "
            "it is oversubscribed.",
        ),
        lambda sample: sample.device.reservable / 100,
    ),
    (
        MetricText("pyvgpu_device_cordoned", "1 if a device takes no new containers."),
        lambda sample: sample.device.cordoned,
    ),
)

WAITING_PODS = MetricText(
    "pyvgpu_device_waiting_pods",
    "Pods that wait for room on an oversubscribed device: to start, or to be resumed.",
)
CONTAINER_MEANS = MetricText(
    "pyvgpu_container_isolation_info",
    "The means that hold a container to its share, as a label: quota, hardware (a MIG device of "
    "its own), hardware+quota (a share of a MIG device), mps or whole-device; always 1.",
)
DEVICE_MEANS = MetricText(
    "pyvgpu_device_isolation_info",
    "The means that hold the containers of a device to their shares, as a label: quota, hardware "
    "(MIG instances), hardware+quota (a MIG device), mps or time-slices; always 1.",
)
FINDINGS = MetricText(
    "pyvgpu_audit_findings", "Quota violations that the audit finds now, by kind."
)
AUDITS = MetricText(
    "pyvgpu_audit_active",
    "1 if the audit compares the usage of processes with their grants; 0 without hostPID.",
)
OTHER_PLUGIN = MetricText(
    "pyvgpu_other_plugin",
    "1 if no device is offered, since another device plugin manages the GPUs of this node.",
)
GRANTS = MetricText(
    "pyvgpu_grants",
    "Grants: bound to a container; of a waiting pod; or unbound: the pod is not known.",
)
BUILD = MetricText("pyvgpu_build_info", "Version of pyvgpu, as a label; always 1.")


@dataclasses.dataclass(frozen=True, slots=True)
class MetricSources:
    """Sources of the metrics; each scrape reads them again."""

    grants: Callable[[], Collection[Grant]]
    devices: Callable[[], Sequence[datatypes.NodeDevice]]
    answers: Callable[[], Mapping[str, ProbeResult]]  # of NVML, by UUID
    use: Callable[[str, str], usage.Use]  # of a grant, on a device
    findings: Callable[[], Sequence[quota_audit.Violation]]
    audits: Callable[[], bool]  # whether the audit runs
    other_plugin: Callable[[], str] = str  # the one that gives out the same devices; empty: none
    # The ids of grants of pods that wait for room.
    waiting: Callable[[], Collection[str]] = frozenset
    # The memory limit that the driver itself enforces on the containers of a grant.
    driver_limit: Callable[[str], memory_limit.Limit] = lambda _: memory_limit.NONE
    # What suspensions have moved of the containers of a grant, by device; None: nothing.
    moved: Callable[[str], MovedMemory | None] = lambda _: None
    # How many pods wait for room on each oversubscribed device, by UUID.
    waiting_pods: Callable[[], Mapping[str, int]] = dict


def parts(sources: MetricSources) -> Iterator[ContainerSample]:
    """Yield each container's share of each device."""
    answers = sources.answers()
    for grant in sources.grants():
        if grant.owner is None:
            continue
        owner = grant.owner
        limits = sources.driver_limit(grant.id).sizes
        moved = sources.moved(grant.id)
        for index, share in enumerate(grant.shares):
            elastic = grant.policy is quota.TimePolicy.ELASTIC
            limit = (grant.ceiling or quantity.WHOLE_DEVICE) if elastic else share.vcore
            yield ContainerSample(
                owner.namespace,
                owner.pod,
                owner.container,
                share.uuid,
                share.vcore / quantity.WHOLE_DEVICE,
                limit / quantity.WHOLE_DEVICE,
                share.vmemory,
                use_of(sources, answers, grant, share.uuid),
                limits[index] if index < len(limits) else 0,
                0 if moved is None else moved.to_host[index],
                0 if moved is None else moved.to_device[index],
                isolation.of_share(share, mps=grant.isolation is quota.Isolation.MPS),
            )


def use_of(
    sources: MetricSources, answers: Mapping[str, ProbeResult], grant: Grant, uuid: str
) -> usage.Use:
    """Return a container's usage of a device; of a whole device or MIG instance, NVML's total."""
    if not grant.whole:
        return sources.use(grant.id, uuid)
    answer = answers.get(grant.shares[0].target if grant.mig else uuid)
    if answer is None:
        return usage.NOTHING
    return usage.Use(ratio=answer.busy or 0.0, held_bytes=answer.used_bytes)


def samples(sources: MetricSources, of: Iterable[ContainerSample]) -> Iterator[DeviceSample]:
    """Yield the state of each device, with its parts among *of*."""
    from pyvgpu.deviceplugin.devices.health import SILENT

    there: dict[str, list[ContainerSample]] = {}
    for part in of:
        there.setdefault(part.uuid, []).append(part)
    answers = sources.answers()
    for device in sources.devices():
        yield DeviceSample(device, answers.get(device.uuid, SILENT), there.get(device.uuid, ()))


def current(sources: MetricSources) -> Iterator[str]:
    """Yield every metric that a scrape reads, in Prometheus' text format.

    Not through its library, which formats the labels of each sample again: for 128 containers
    that alone takes as long as a scrape may take.
    """
    of = list(parts(sources))
    labels = [metric_text.labels(CONTAINER_LABELS, part.labels) for part in of]
    for figure, read in CONTAINER:
        yield metric_text.of_figure(figure, zip(labels, map(read, of), strict=True))
    held = (metric_text.labels(CONTAINER_MEANS_LABELS, (*part.labels, part.means)) for part in of)
    yield metric_text.of_figure(CONTAINER_MEANS, ((label, 1) for label in held))
    found = list(samples(sources, of))
    labels = [metric_text.labels(DEVICE_LABELS, sample.labels) for sample in found]
    for shown, value_of in DEVICE:
        values = zip(labels, map(value_of, found), strict=True)
        yield metric_text.of_figure(
            shown, ((label, value) for label, value in values if value is not None)
        )
    held = (
        metric_text.labels(
            DEVICE_MEANS_LABELS, (*sample.labels, isolation.of_device(sample.device))
        )
        for sample in found
    )
    yield metric_text.of_figure(DEVICE_MEANS, ((label, 1) for label in held))
    yield metric_text.of_figure(
        WAITING_PODS,
        (
            (metric_text.labels(("uuid",), (uuid,)), count)
            for uuid, count in sources.waiting_pods().items()
        ),
    )
    wrong = dict.fromkeys((kind.value for kind in quota_audit.ViolationKind), 0)
    for finding in sources.findings():
        wrong[finding.kind.value] += 1
    yield metric_text.of_figure(
        FINDINGS, ((metric_text.labels(("kind",), (kind,)), wrong[kind]) for kind in wrong)
    )
    yield metric_text.of_figure(AUDITS, [("", sources.audits())])
    yield metric_text.of_figure(OTHER_PLUGIN, [("", bool(sources.other_plugin()))])
    known = sources.grants()
    waiting = sources.waiting()
    found_of = collections.Counter(_state(grant, waiting) for grant in known)
    states = {state: found_of[state] for state in ("bound", "waiting", "unbound")}
    yield metric_text.of_figure(
        GRANTS, ((metric_text.labels(("state",), (state,)), states[state]) for state in states)
    )
    yield metric_text.of_figure(
        BUILD, [(metric_text.labels(("version",), (pyvgpu.__version__,)), 1)]
    )


def _state(grant: Grant, waiting: Collection[str]) -> str:
    return "bound" if grant.bound else "waiting" if grant.id in waiting else "unbound"


class AgentMeter(exposition.Exposition):
    """Counters of the agent's own work."""

    def __init__(self, *, require_cdi: bool = True) -> None:
        super().__init__()
        self._sources: MetricSources | None = None
        self._moved: dict[str, MovedMemory] = {}  # by grant
        self.host_memory_limit = 0  # bytes, of all suspended pods together
        self._calls = self.histogram(
            "pyvgpu_kubelet_call_seconds",
            "Duration of kubelet's calls: allocate, start, prepare or unprepare; done, "
            "refused, or refused for now since the pod waits.",
            CALLS,
            "call",
            "result",
        )
        self._events = self.counter(
            "pyvgpu_events_total",
            "Events written for pods, and evictions, by reason.",
            "written",
            "reason",
        )
        self._ended = self.counter(
            "pyvgpu_audit_ended_processes_total",
            "Processes that the audit killed because they exceeded their quota.",
        )
        self._suspensions = self.histogram(
            "pyvgpu_suspension_seconds",
            "Duration of suspending and resuming pods: done, refused, or lost since the driver "
            "could not restore a container.",
            SUSPENSIONS,
            "action",
            "result",
        )
        self._oversubscribed = self.counter(
            "pyvgpu_oversubscription_moves_total",
            "Suspensions and resumptions of pods that the policy of oversubscription began.",
            "uuid",
            "action",
        )
        self._requests = self.counter(
            "pyvgpu_api_requests_total",
            "Requests to the API server, by method and status code (0: no response).",
            "method",
            "code",
        )
        self.gauge(
            "pyvgpu_cdi_required",
            "1 if containers get devices through CDI; 0: they see the nodes of all devices.",
            lambda: float(require_cdi),
        )
        self.gauge(
            "pyvgpu_suspended_memory_limit_bytes",
            "Host memory that all suspended pods of the node may take together; 0: no pod is "
            "suspended.",
            lambda: float(self.host_memory_limit),
        )
        for call in ("allocate", "start", "prepare", "unprepare"):
            for result in (call_timing.CallResult.DONE, call_timing.CallResult.REFUSED):
                self._calls.labels(call, result.value)  # exists from the beginning, as 0
        self._calls.labels("start", call_timing.CallResult.WAITS.value)
        for action in ("suspend", "resume"):
            for outcome in ("done", "refused", "lost"):
                self._suspensions.labels(action, outcome)

    def show(self, sources: MetricSources) -> None:
        """Show the metrics of *sources*, too."""
        self._sources = dataclasses.replace(sources, moved=self._moved.get)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        shown = "" if self._sources is None else "".join(current(self._sources))
        return super().text() + shown.encode()

    def called(self, call: str, seconds: float, result: call_timing.CallResult) -> None:
        """Count a call of kubelet."""
        self._calls.labels(call, result.value).observe(seconds)

    def reported(self, written: str, event: events.GrantEvent) -> None:
        """Count an event that was written, or an eviction."""
        self._events.labels(written, event.reason.value).inc()

    def suspended(self, action: str, result: str, seconds: float) -> None:
        """Count a suspension or resumption of a pod."""
        self._suspensions.labels(action, result).observe(seconds)

    def oversubscribed(self, uuid: str, action: str) -> None:
        """Count a move of a pod on an oversubscribed device: suspend or resume."""
        self._oversubscribed.labels(uuid, action).inc()

    def moved(self, grant_id: str, more: MovedMemory) -> None:
        """Count what a suspension or resumption of a container has moved."""
        before = self._moved.get(grant_id)
        self._moved[grant_id] = more if before is None else before.plus(more)

    def forget(self, live: Collection[str]) -> None:
        """Drop the sums of all grants but *live*."""
        for gone in {*list(self._moved)} - set(live):
            self._moved.pop(gone, None)

    def asked(self, method: str, status: int, _: float) -> None:
        """Count a request to the API server."""
        self._requests.labels(method, status).inc()

    def ended(self) -> None:
        """Count a process that the auditor has killed."""
        self._ended.inc()
