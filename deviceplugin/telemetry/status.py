"""The JSON document of a node's status page: its devices, containers, problems, events. Pure.

Ratios go from 0 to 1, sizes are bytes; the points of lines are thousandths of a device's time, and
MiB. Problems are sentences, which the page shows verbatim.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu.allocator import isolation
from pyvgpu.status import documents, states

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyvgpu.deviceplugin.audit import quota_audit
    from pyvgpu.deviceplugin.grants import events
    from pyvgpu.deviceplugin.telemetry import usage
    from pyvgpu.deviceplugin.telemetry.metric_families import ContainerSample, DeviceSample
    from pyvgpu.status import history

_MIB = 1 << 20
_LINES = ("used", "memoryMiB")

Key = tuple[str, ...]  # the labels of a container's series, or the UUID of a device


@dataclasses.dataclass(frozen=True, slots=True)
class EventRecord:
    """An event that the agent wrote for a pod, and when."""

    at: float  # seconds since the epoch
    event: events.GrantEvent


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """All inputs of the document at one moment."""

    node: str
    at: float  # seconds since the epoch, of the last poll; 0: there was none
    samples: Sequence[DeviceSample]
    states: Mapping[Key, states.HolderState]
    lines: history.History[Key]
    days: history.DayHistory  # of the devices, by UUID
    unbound: int  # grants that are not matched to a container yet
    findings: Collection[quota_audit.Violation]
    records: Iterable[EventRecord]  # the newest last
    troubles: Sequence[tuple[str, str]]  # component of the agent, and its problem


def document(seen: Facts, period: float) -> dict[str, Any]:
    """Return the document; *period* is the seconds between two polls."""
    devices = [_device(sample, seen) for sample in seen.samples]
    return documents.node(
        seen.node,
        seen.at,
        period,
        devices,
        problems=[
            *(documents.problem(part, text) for part, text in seen.troubles if text),
            *(
                documents.problem(sample.device.label, sample.device.unhealthy)
                for sample in seen.samples
                if sample.device.unhealthy
            ),
            *(documents.problem("audit", finding.text) for finding in seen.findings),
        ],
        events=[_event(record) for record in reversed(list(seen.records))],
        unbound=seen.unbound,
    )


def points(use: usage.Use) -> history.Values:
    """Return the history point of *use*: ratio, memory, and the sums of waiting and refusals."""
    waited = round(1000 * use.waited_seconds)
    return round(1000 * use.ratio), use.held_bytes // _MIB, waited, use.refused


def state_at(
    part: ContainerSample, before: Sequence[history.Values], period: float
) -> states.HolderState:
    """Return a container's state by its last points, *before*, *period* seconds apart."""
    if part.use.suspended:
        return states.HolderState.SUSPENDED
    if len(before) < 2:
        return states.state_of(part.vcore, part.use.ratio, 0.0, 0)
    first, last = before[0], before[-1]
    used = sum(point[0] for point in before[1:]) / 1000 / (len(before) - 1)
    waited = (last[2] - first[2]) / 1000 / (period * (len(before) - 1))
    return states.state_of(part.vcore, used, waited, last[3] - first[3])


def _device(sample: DeviceSample, seen: Facts) -> dict[str, Any]:
    device = sample.device
    return {
        "uuid": device.uuid,
        "label": device.label,
        "model": device.model,
        "state": device.state,
        "why": device.why,
        "isolation": isolation.of_device(device).value,
        "used": None if sample.answer.busy is None else _rounded(sample.answer.busy),
        "allocated": _rounded(sum(part.vcore for part in sample.parts)),
        "memoryBytes": device.memory_bytes,
        "usedBytes": sample.answer.used_bytes,
        "allocatedBytes": sum(part.vmemory for part in sample.parts),
        "lines": seen.lines.lines((device.uuid,), _LINES),
        "day": seen.days.lines(device.uuid, _LINES),
        "containers": [_container(part, seen) for part in sorted(sample.parts, key=_name)],
    }


def _name(part: ContainerSample) -> Key:
    return part.labels


def _container(part: ContainerSample, seen: Facts) -> dict[str, Any]:
    return {
        "namespace": part.namespace,
        "pod": part.pod,
        "container": part.container,
        "state": seen.states.get(part.labels, states.HolderState.IDLE).value,
        "isolation": part.means.value,
        "allocated": _rounded(part.vcore),
        "limit": _rounded(part.limit),
        "used": _rounded(part.use.ratio),
        "allocatedBytes": part.vmemory,
        "usedBytes": part.use.held_bytes,
        "hostBytes": part.use.host_bytes,
        "refused": part.use.refused,
        "waitedSeconds": round(part.use.waited_seconds, 1),
        "processes": part.use.processes,
        "lines": seen.lines.lines(part.labels, _LINES),
    }


def _event(record: EventRecord) -> dict[str, str]:
    event = record.event
    return {
        "at": documents.when(record.at),
        "type": event.kind,
        "reason": event.reason.value,
        "object": _whose(event),
        "text": event.text,
    }


def _whose(event: events.GrantEvent) -> str:
    if event.of_node:
        return f"node {event.name}"
    return f"{event.namespace}/{event.name}" if event.name else f"pod {event.uid}"


def _rounded(ratio: float) -> float:
    return round(ratio, 4)
