"""What stands in the tables of `kubectl vgpu`, and in its JSON; pure.

The keys are those of :mod:`tables`; sizes are bytes, times vcore or seconds, and None is what
nobody has said.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING

from pyvgpu.controller import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.allocator import facts
    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.people.figures import Told
    from pyvgpu.controller.people.holders import Part

    Rows = list[dict[str, object]]

# Reasons of events that an audit has.
PAST_QUOTA = ("VGPUBypassed", "VGPUTampered", "VGPUProcessEnded")
KINDS = {
    "no-shim": "noShim",
    "foreign": "foreign",
    "above": "above",
    "time": "time",
    "tampered": "tampered",
    "outside": "outside",
}
_LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def held(parts: Iterable[Part]) -> Rows:
    """Return who holds what."""
    return [_part(it) for it in parts]


def used(parts: Iterable[Part], told: Mapping[str, Told | None]) -> Rows:
    """Return what containers achieve of what they were promised; *told* is by node."""
    rows = []
    for it in parts:
        agent = told.get(it.node)
        figures = {} if agent is None else agent.used(it.key)
        refused = figures.get("refused_allocations_total")
        rows.append(
            {
                **_part(it),
                "usedVcore": _vcore(figures.get("vcore_used_ratio")),
                "heldBytes": _whole(figures.get("memory_used_bytes")),
                "driverLimitBytes": _whole(figures.get("memory_driver_limit_bytes")) or None,
                "refused": _whole(refused),
            }
        )
    return rows


def devices(
    there: Mapping[str, Mapping[str, facts.Device]],
    parts: Iterable[Part],
    told: Mapping[str, Told | None],
) -> Rows:
    """Return what is promised and used of each device of each node."""
    holders: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        holders.setdefault((part.node, part.uuid), []).append(part)
    rows: Rows = []
    for node in sorted(there):
        agent = told.get(node)
        for device in sorted(there[node].values(), key=lambda it: it.index):
            figures = {} if agent is None else agent.devices.get(device.uuid, {})
            those = holders.get((node, device.uuid), ())
            rows.append(
                {
                    "node": node,
                    "device": device.label,
                    "uuid": device.uuid,
                    "model": device.model,
                    "pods": len({(it.namespace, it.pod) for it in those}),
                    "vcore": sum(it.vcore for it in those),
                    "usedVcore": _vcore(figures.get("used_ratio")),
                    "vmemoryBytes": sum(it.vmemory for it in those),
                    "memoryBytes": device.memory_bytes,
                    "heldBytes": _whole(figures.get("memory_used_bytes")),
                    "state": device.state,
                }
            )
    return rows


def events(listed: Iterable[Object], now: datetime.datetime) -> Rows:
    """Return what agents wrote of processes past their quota, the newest last."""
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
    return [row for _, row in sorted(found, key=lambda it: it[0])]


def audits(told: Mapping[str, Told | None]) -> Rows:
    """Return what the agent of each node finds now; None: it did not answer."""
    rows: Rows = []
    for node, agent in sorted(told.items()):
        looks = agent is not None and agent.audits
        counted = dict.fromkeys(KINDS.values(), 0)
        for kind, number in () if agent is None else agent.findings.items():
            counted[KINDS.get(kind, kind)] = number
        rows.append(
            {
                "node": node,
                "looks": None if agent is None else "yes" if looks else "no",
                **{key: number if looks else None for key, number in counted.items()},
            }
        )
    return rows


def last_seen(event: Object) -> datetime.datetime | None:
    """Return when an event last happened, as far as it says."""
    series = objects.section(event, "series").get("lastObservedTime")
    made = objects.section(event, "metadata").get("creationTimestamp")
    text = series or event.get("lastTimestamp") or event.get("eventTime") or made
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _part(it: Part) -> dict[str, object]:
    found = dataclasses.asdict(it)
    found["vmemoryBytes"] = found.pop("vmemory")
    return {key: value or None for key, value in found.items()}


def _vcore(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 1)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
