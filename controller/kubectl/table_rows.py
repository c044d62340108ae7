"""Rows of the tables and of the JSON that `kubectl vgpu` prints; pure.

The keys are those of :mod:`tables`. Sizes are bytes, device time is vcore or seconds, and None
means unknown.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING

from pyvgpu.allocator import isolation
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.allocator import datatypes
    from pyvgpu.controller.kubectl.agent_metrics import AgentMetrics
    from pyvgpu.controller.kubectl.device_holders import HeldShare
    from pyvgpu.kube.objects import Object

    Rows = list[dict[str, object]]

# Reasons of the events that `kubectl vgpu audit` shows.
PAST_QUOTA = ("VGPUQuotaBypassed", "VGPUTampered", "VGPUProcessEnded")
KINDS = {
    "no-shim": "noShim",
    "foreign": "foreign",
    "above": "above",
    "time": "time",
    "tampered": "tampered",
    "outside": "outside",
}
_LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def held(parts: Iterable[HeldShare]) -> Rows:
    """Return the rows of allocations."""
    return [_part(part) for part in parts]


def used(parts: Iterable[HeldShare], reports: Mapping[str, AgentMetrics | None]) -> Rows:
    """Return the rows of usage beside allocation; *reports* is by node."""
    rows = []
    for part in parts:
        agent = reports.get(part.node)
        figures = {} if agent is None else agent.used(part.key)
        refused = figures.get("refused_allocations_total")
        rows.append(
            {
                **_part(part),
                "usedVcore": _vcore(figures.get("vcore_used_ratio")),
                "heldBytes": _whole(figures.get("memory_used_bytes")),
                "hostBytes": _whole(figures.get("memory_host_bytes")),
                "driverLimitBytes": _whole(figures.get("memory_driver_limit_bytes")) or None,
                "refused": _whole(refused),
            }
        )
    return rows


def devices(
    there: Mapping[str, Mapping[str, datatypes.NodeDevice]],
    parts: Iterable[HeldShare],
    reports: Mapping[str, AgentMetrics | None],
) -> Rows:
    """Return the rows of allocation and usage of each device."""
    holders: dict[tuple[str, str], list[HeldShare]] = {}
    for part in parts:
        holders.setdefault((part.node, part.uuid), []).append(part)
    rows: Rows = []
    for node in sorted(there):
        agent = reports.get(node)
        for device in sorted(there[node].values(), key=lambda one: one.index):
            figures = {} if agent is None else agent.devices.get(device.uuid, {})
            those = holders.get((node, device.uuid), ())
            rows.append(
                {
                    "node": node,
                    "device": device.label,
                    "uuid": device.uuid,
                    "model": device.model,
                    "pods": len({(part.namespace, part.pod) for part in those}),
                    "vcore": sum(part.vcore for part in those),
                    "usedVcore": _vcore(figures.get("used_ratio")),
                    "vmemoryBytes": sum(part.vmemory for part in those),
                    "memoryBytes": device.memory_bytes,
                    "heldBytes": _whole(figures.get("memory_used_bytes")),
                    "state": device.state,
                    "isolation": isolation.of_device(device).value,
                }
            )
    return rows


def events(listed: Iterable[Object], now: datetime.datetime) -> Rows:
    """Return the events about processes that bypass their quota, the newest last."""
    found = []
    for event in listed:
        if event.get("reason") not in PAST_QUOTA:
            continue
        pod, seen = objects.section(event, "involvedObject"), last_seen(event)
        count = objects.section(event, "series").get("count") or event.get("count") or 1
        row = {
            "namespace": pod.get("namespace"),
            "ageSeconds": None if seen is None else int((now - seen).total_seconds()),
            "reason": event.get("reason"),
            "pod": pod.get("name"),
            "count": count,
            "message": " ".join(str(event.get("message") or "").split()),
        }
        found.append((seen or _LONG_AGO, row))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def audits(reports: Mapping[str, AgentMetrics | None]) -> Rows:
    """Return the current audit findings by node; None: the agent did not answer."""
    rows: Rows = []
    for node, agent in sorted(reports.items()):
        active = agent is not None and agent.audits
        counted = dict.fromkeys(KINDS.values(), 0)
        for kind, number in () if agent is None else agent.findings.items():
            counted[KINDS.get(kind, kind)] = number
        rows.append(
            {
                "node": node,
                "active": None if agent is None else "yes" if active else "no",
                **{key: number if active else None for key, number in counted.items()},
            }
        )
    return rows


def last_seen(event: Object) -> datetime.datetime | None:
    """Return when an event was last seen; None if it has no valid time."""
    series = objects.section(event, "series").get("lastObservedTime")
    made = objects.section(event, "metadata").get("creationTimestamp")
    text = series or event.get("lastTimestamp") or event.get("eventTime") or made
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _part(part: HeldShare) -> dict[str, object]:
    found = dataclasses.asdict(part)
    found["vmemoryBytes"] = found.pop("vmemory")
    return {key: value or None for key, value in found.items()}


def _vcore(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 1)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
