"""What the agent shows Prometheus: the name and the help of each figure stand here.

A container's series are there from when it is granted until its pod is gone, and 0 while it uses
nothing. What it was promised is told as it is when somebody asks; what it uses, as it was at the
last look of ``usage``.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import pyvgpu
from pyvgpu import figures, memorylimit, quantity, quota
from pyvgpu.deviceplugin import audit, counting, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.allocator import facts
    from pyvgpu.deviceplugin import events
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.health import Answer

CALLS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)  # seconds

CONTAINER_LABELS = ("namespace", "pod", "container", "uuid")
DEVICE_LABELS = ("uuid", "index", "model")


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """What one figure is called, and what it says."""

    name: str  # a counter's ends in _total
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What a container has of one device, for its figures."""

    namespace: str
    pod: str
    container: str
    uuid: str
    vcore: float  # ratio of the device's time
    limit: float  # ratio that it may reach
    vmemory: int  # bytes
    use: usage.Use
    driver_limit: int = 0  # bytes to which the driver itself holds it; 0: to nothing

    @property
    def labels(self) -> tuple[str, ...]:
        """As in CONTAINER_LABELS."""
        return self.namespace, self.pod, self.container, self.uuid


@dataclasses.dataclass(frozen=True, slots=True)
class Stand:
    """How one device stands, for its figures."""

    device: facts.Device
    answer: Answer  # what NVML said last
    parts: Sequence[Part]  # what containers have of it

    @property
    def labels(self) -> tuple[str, ...]:
        """As in DEVICE_LABELS."""
        return self.device.uuid, str(self.device.index), self.device.model


CONTAINER: tuple[tuple[Figure, Callable[[Part], float]], ...] = (
    (
        Figure(
            "pyvgpu_container_vcore_promised_ratio",
            "Part of a device's time that a container was promised.",
        ),
        lambda it: it.vcore,
    ),
    (
        Figure(
            "pyvgpu_container_vcore_limit_ratio",
            "Part of a device's time that a container may reach where others are idle.",
        ),
        lambda it: it.limit,
    ),
    (
        Figure(
            "pyvgpu_container_vcore_used_ratio",
            "Part of a device's time that a container used in the last seconds.",
        ),
        lambda it: it.use.ratio,
    ),
    (
        Figure(
            "pyvgpu_container_busy_seconds_total", "A device's time that a container has used."
        ),
        lambda it: it.use.busy_seconds,
    ),
    (
        Figure(
            "pyvgpu_container_memory_promised_bytes",
            "Memory of a device that a container was promised.",
        ),
        lambda it: it.vmemory,
    ),
    (
        Figure(
            "pyvgpu_container_memory_driver_limit_bytes",
            "Memory of a device that the driver itself lets a container hold; 0: any, and the "
            "shim alone holds it to its quota.",
        ),
        lambda it: it.driver_limit,
    ),
    (
        Figure("pyvgpu_container_memory_used_bytes", "Memory of a device that a container holds."),
        lambda it: it.use.held_bytes,
    ),
    (
        Figure(
            "pyvgpu_container_refused_allocations_total",
            "Allocations that did not fit into a container's quota.",
        ),
        lambda it: it.use.refused,
    ),
    (
        Figure(
            "pyvgpu_container_waits_total",
            "Launches of a container that waited for their turn.",
        ),
        lambda it: it.use.waits,
    ),
    (
        Figure(
            "pyvgpu_container_waited_seconds_total",
            "What launches of a container have waited, all together.",
        ),
        lambda it: it.use.waited_seconds,
    ),
    (
        Figure(
            "pyvgpu_container_processes", "Processes of a container that have a part of a device."
        ),
        lambda it: it.use.processes,
    ),
)

DEVICE: tuple[tuple[Figure, Callable[[Stand], float]], ...] = (
    (
        Figure("pyvgpu_device_memory_bytes", "Memory that a device has."),
        lambda it: it.device.memory_bytes,
    ),
    (
        Figure("pyvgpu_device_memory_granted_bytes", "Memory of a device that is promised."),
        lambda it: sum(part.vmemory for part in it.parts),
    ),
    (
        Figure(
            "pyvgpu_device_memory_used_bytes",
            "Memory of a device that is in use, by whomever, as NVML says.",
        ),
        lambda it: it.answer.used_bytes,
    ),
    (
        Figure("pyvgpu_device_vcore_granted_ratio", "Part of a device's time that is promised."),
        lambda it: sum(part.vcore for part in it.parts),
    ),
    (
        Figure(
            "pyvgpu_device_used_ratio",
            "Part of the last moment in which a device worked, for whomever, as NVML says.",
        ),
        lambda it: it.answer.busy,
    ),
    (
        Figure("pyvgpu_device_containers", "Containers that have a part of a device."),
        lambda it: len(it.parts),
    ),
    (
        Figure("pyvgpu_device_healthy", "1 if a device is well, 0 if it is sick or away."),
        lambda it: not it.device.sick,
    ),
    (
        Figure("pyvgpu_device_cordoned", "1 if nothing new is to come onto a device."),
        lambda it: it.device.cordoned,
    ),
)

FINDINGS = Figure("pyvgpu_audit_findings", "Processes that are past their quota now, by kind.")
AUDITS = Figure(
    "pyvgpu_audit_active",
    "1 if what processes hold of devices is compared with what was granted; 0 without hostPID.",
)
OTHER_PLUGIN = Figure(
    "pyvgpu_other_plugin",
    "1 if no device is offered, since another device plugin gives out the GPUs of this node.",
)
GRANTS = Figure(
    "pyvgpu_grants",
    "Grants: bound to a container; of a pod that waits; or unbound: the pod is not known.",
)
BUILD = Figure("pyvgpu_build_info", "Which pyvgpu this is; always 1.")


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from; each is asked whenever somebody looks."""

    grants: Callable[[], Collection[Grant]]
    devices: Callable[[], Sequence[facts.Device]]
    answers: Callable[[], Mapping[str, Answer]]  # of NVML, by UUID
    use: Callable[[str, str], usage.Use]  # of a grant, on a device
    findings: Callable[[], Sequence[audit.Finding]]
    audits: Callable[[], bool]  # whether anybody looks for findings
    other_plugin: Callable[[], str] = str  # which one gives out the same devices; empty: none
    # The ids of grants of pods that wait for room.
    waiting: Callable[[], Collection[str]] = frozenset
    # What the driver itself holds the containers of a grant to.
    driver_limit: Callable[[str], memorylimit.Limit] = lambda _: memorylimit.NONE


def parts(sources: Sources) -> Iterator[Part]:
    """Give what each container has of each device."""
    answers = sources.answers()
    for grant in sources.grants():
        if grant.owner is None:
            continue
        who = grant.owner
        limits = sources.driver_limit(grant.id).sizes
        for index, share in enumerate(grant.shares):
            elastic = grant.policy is quota.Policy.ELASTIC
            limit = (grant.ceiling or quantity.WHOLE_DEVICE) if elastic else share.vcore
            yield Part(
                who.namespace,
                who.pod,
                who.container,
                share.uuid,
                share.vcore / quantity.WHOLE_DEVICE,
                limit / quantity.WHOLE_DEVICE,
                share.vmemory,
                use_of(sources, answers, grant, share.uuid),
                limits[index] if index < len(limits) else 0,
            )


def use_of(sources: Sources, answers: Mapping[str, Answer], grant: Grant, uuid: str) -> usage.Use:
    """Return what a container uses of a device: of one that is its alone, all that is used."""
    if not grant.whole:
        return sources.use(grant.id, uuid)
    answer = answers.get(uuid)
    if answer is None:
        return usage.NOTHING
    return usage.Use(ratio=answer.busy, held_bytes=answer.used_bytes)


def stands(sources: Sources, of: Iterable[Part]) -> Iterator[Stand]:
    """Give how each device stands that has these parts."""
    from pyvgpu.deviceplugin.health import SILENT

    there: dict[str, list[Part]] = {}
    for part in of:
        there.setdefault(part.uuid, []).append(part)
    answers = sources.answers()
    for device in sources.devices():
        yield Stand(device, answers.get(device.uuid, SILENT), there.get(device.uuid, ()))


def current(sources: Sources) -> Iterator[str]:
    """Give all that is read when somebody looks, in Prometheus' text format.

    Not by its library, which writes the labels of each sample anew: of 128 containers that takes
    as long as a scrape may take in all.
    """
    of = list(parts(sources))
    labels = [figures.labels(CONTAINER_LABELS, it.labels) for it in of]
    for figure, read in CONTAINER:
        yield _family(figure, zip(labels, map(read, of), strict=True))
    found = list(stands(sources, of))
    labels = [figures.labels(DEVICE_LABELS, it.labels) for it in found]
    for shown, tell in DEVICE:
        yield _family(shown, zip(labels, map(tell, found), strict=True))
    wrong = dict.fromkeys((it.value for it in audit.Kind), 0)
    for finding in sources.findings():
        wrong[finding.kind.value] += 1
    yield _family(FINDINGS, ((figures.labels(("kind",), (it,)), wrong[it]) for it in wrong))
    yield _family(AUDITS, [("", sources.audits())])
    yield _family(OTHER_PLUGIN, [("", bool(sources.other_plugin()))])
    known = sources.grants()
    waiting = sources.waiting()
    found_of = collections.Counter(_state(it, waiting) for it in known)
    states = {it: found_of[it] for it in ("bound", "waiting", "unbound")}
    yield _family(GRANTS, ((figures.labels(("state",), (it,)), states[it]) for it in states))
    yield _family(BUILD, [(figures.labels(("version",), (pyvgpu.__version__,)), 1)])


def _state(grant: Grant, waiting: Collection[str]) -> str:
    return "bound" if grant.bound else "waiting" if grant.id in waiting else "unbound"


def _family(figure: Figure, rows: Iterable[tuple[str, float]]) -> str:
    kind = "counter" if figure.name.endswith("_total") else "gauge"
    return figures.family(figure.name, kind, figure.text, rows)


class AgentMeter(figures.Figures):
    """What the agent counts itself."""

    def __init__(self, *, require_cdi: bool = True) -> None:
        super().__init__()
        self._sources: Sources | None = None
        self._calls = self.histogram(
            "pyvgpu_kubelet_call_seconds",
            "How long calls of kubelet took: allocate, start, prepare or unprepare; done, "
            "refused, or refused for now since the pod waits.",
            CALLS,
            "call",
            "result",
        )
        self._told = self.counter(
            "pyvgpu_events_total",
            "Events that were written of pods, and evictions, by reason.",
            "written",
            "reason",
        )
        self._ended = self.counter(
            "pyvgpu_audit_ended_processes_total",
            "Processes that were ended because they were past their quota.",
        )
        self._requests = self.counter(
            "pyvgpu_api_requests_total",
            "Requests to the API server, by method and answer (0: there was none).",
            "method",
            "code",
        )
        self.gauge(
            "pyvgpu_cdi_required",
            "1 if containers get devices by CDI; 0: they see the nodes of all devices.",
            lambda: float(require_cdi),
        )
        for call in ("allocate", "start", "prepare", "unprepare"):
            for result in (counting.Result.DONE, counting.Result.REFUSED):
                self._calls.labels(call, result.value)  # there from the beginning
        self._calls.labels("start", counting.Result.WAITS.value)

    def show(self, sources: Sources) -> None:
        """Show what is read from these, too."""
        self._sources = sources

    def text(self) -> bytes:
        """Return everything, as Prometheus reads it."""
        shown = "" if self._sources is None else "".join(current(self._sources))
        return super().text() + shown.encode()

    def called(self, call: str, seconds: float, result: counting.Result) -> None:
        """Count a call of kubelet."""
        self._calls.labels(call, result.value).observe(seconds)

    def told(self, written: str, event: events.Event) -> None:
        """Count an event that was written, or an eviction."""
        self._told.labels(written, event.reason.value).inc()

    def asked(self, method: str, status: int, _: float) -> None:
        """Count a request to the API server."""
        self._requests.labels(method, status).inc()

    def ended(self) -> None:
        """Count a process that the auditor has ended."""
        self._ended.inc()
