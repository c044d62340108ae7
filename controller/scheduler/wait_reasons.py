"""Explain why a pod waits, by node and device, and what would make it fit.

It has three forms: the pod's event, which is short; text and rows for people; a document for
programs.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, quantity
from pyvgpu.allocator import (
    datatypes,
    free_capacity,
    mig_placement,
    placement_explanation,
    search_budget,
)
from pyvgpu.controller.scheduler import index, pod_request, victims

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyvgpu.controller.scheduler import cache
    from pyvgpu.controller.scheduler.node_info import NodeInfo

MOST_EVENT_BYTES = 1024  # of an event's message, by Kubernetes' rule
AT_ONCE = 50  # nodes evaluated before other threads may take the lock
MOST_ENDING = 3  # pods named whose end would make room
ABOVE_ALL = 1 << 31  # higher than any pod's priority
_LEAST = 1 << 20  # vcore times bytes of a claim that gives no amounts
_MOST_LISTED = 8
_NOT_DIVIDED = "none; agent.dynamicMig (--dynamic-mig) names those of the GPUs in MIG mode"
ROW = ("NODE", "DEVICE", "CONTAINER", "WHY NOT")


@dataclasses.dataclass(frozen=True, slots=True)
class Near:
    """The device that lacks least, and what would make the pod fit there."""

    node: str
    device: str  # empty: several are needed
    text: str  # what is missing
    remedies: tuple[str, ...] = ()  # each one suffices

    def __str__(self) -> str:
        would = f"; it would fit if {', or if '.join(self.remedies)}" if self.remedies else ""
        return f"{self.node} {self.device}".rstrip() + f" {self.text}{would}"


@dataclasses.dataclass(frozen=True, slots=True)
class Why:
    """Why a pod waits."""

    pod: str  # namespace/name
    asked: str
    trouble: str  # why its request is invalid; empty: it is valid
    fitting: tuple[str, ...]  # nodes that fit
    refusing: dict[str, tuple[str, ...]]  # nodes by reason
    kept: str = ""  # the node reserved for it
    near: Near | None = None
    lines: dict[str, tuple[placement_explanation.DeviceReason, ...]] = dataclasses.field(
        default_factory=dict
    )
    divided: tuple[str, ...] | None = None  # GPUs for MIG instances; None: it requests none

    def event(self) -> str:
        """Return it within the limit of an event's message."""
        if self.trouble:
            return _cut(self.trouble)
        nearest = f"; nearest: {self.near}" if self.near else ""
        return _cut(f"{self._summary()}{nearest}")

    def text(self) -> str:
        """Return it for people, without the devices of every node."""
        if self.trouble:
            return f"{self.pod}: {self.trouble}"
        found = [f"{self.pod} asks for {self.asked}", f"  {self._summary()}"]
        if self.kept:
            found.append(f"  reserved for it: {self.kept}")
        if self.near:
            found.append(f"  nearest: {self.near}")
        if self.divided is not None:
            found.append(f"  GPUs for MIG instances: {_listed(self.divided) or _NOT_DIVIDED}")
        return "\n".join(found)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a row for each device of each node, with the columns of ROW."""
        return [
            (name, line.label, line.container, line.text)
            for name, lines in sorted(self.lines.items())
            for line in lines
        ]

    @property
    def only_closed(self) -> bool:
        """Whether all devices are closed to new pods, though free: cordoned, or another's."""
        found = [line.text for lines in self.lines.values() for line in lines if line.uuid]
        return bool(found) and all(text.startswith(free_capacity.CLOSED) for text in found)

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        why = {name: text for text, names in self.refusing.items() for name in names}
        return {
            "pod": self.pod,
            "asks": self.asked,
            "trouble": self.trouble,
            "fits": sorted(self.fitting),
            "kept": self.kept,
            "nearest": dataclasses.asdict(self.near) if self.near else None,
            "nodes": [
                {
                    "name": name,
                    "why": why[name],
                    "devices": [
                        {
                            "device": line.label,
                            "uuid": line.uuid,
                            "container": line.container,
                            "why": line.text,
                        }
                        for line in self.lines.get(name, ())
                    ],
                }
                for name in sorted(why)
            ],
            **({} if self.divided is None else {"migGpus": list(self.divided)}),
        }

    def _summary(self) -> str:
        if self.fitting:
            return f"{_nodes(len(self.fitting))} would fit, such as {min(self.fitting)}"
        counted = sorted(self.refusing.items(), key=lambda refusal: -len(refusal[1]))
        found = "; ".join(f"{_nodes(len(names))}: {text}" for text, names in counted)
        return f"no device for {self.asked}: {found or 'no node is known'}"


def find(
    known: cache.Cache,
    pod: pod_request.PodRequest,
    names: Collection[str] | None = None,
    *,
    every_device: bool = False,
) -> Why:
    """Return why the nodes called *names* do not fit *pod*; None: all known nodes.

    A reservation of *pod* itself makes no difference. *every_device*: with a line for each device
    of each node, which takes longer.
    """
    reservation = known.find(pod.uid)
    if pod.trouble:
        return Why(pod.key, "", pod.trouble, (), {})
    asked = list(known.nodes if names is None else names)
    fitting: list[str] = []
    refusing: dict[str, list[str]] = {}
    lines: dict[str, tuple[placement_explanation.DeviceReason, ...]] = {}
    best: tuple[float, str, free_capacity.FreeCapacity] | None = None
    divided: list[str] = []
    meaning, budget = index.Meaning(pod.shape), search_budget.SearchBudget()
    for some in _some(asked):
        with known.lock:
            for name in some:
                info = known.nodes.get(name)
                why = index.RefusalReason.UNKNOWN
                if info is not None:
                    divided += (f"{name} {one.label}" for one in info.devices if one.profiles)
                    found = meaning.evaluate(info, budget, (pod.uid,))
                    if found is None:
                        fitting.append(name)
                        continue
                    why = found
                refusing.setdefault(why.value, []).append(name)
                if info is None:
                    continue
                if every_device:
                    lines[name] = _lines(info, pod, why)
                wanted = meaning.pod(info.unit) if why.passes else None
                for lacking, room in _lacking(info, pod, wanted) if wanted else ():
                    if best is None or lacking < best[0]:
                        best = lacking, name, room
    return Why(
        pod.key,
        _asked(known, pod),
        "",
        tuple(fitting),
        {text: tuple(found) for text, found in refusing.items()},
        reservation.node if reservation is not None else "",
        None if fitting or best is None else _near(known, pod, best[1], best[2]),
        lines,
        tuple(sorted(divided)) if pod.shape.selector.mig else None,
    )


def _some(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), AT_ONCE):
        yield names[first : first + AT_ONCE]


def _lacking(
    info: NodeInfo, pod: pod_request.PodRequest, wanted: datatypes.Pod
) -> Iterator[tuple[float, free_capacity.FreeCapacity]]:
    """Yield the fraction of each device that it lacks for the largest container."""
    need = max(
        (container.need for container in wanted.containers),
        key=lambda asked: (asked.vcore, asked.vmemory),
    )
    for room in info.without((pod.uid,)):
        device, mig = room.device, wanted.selector.mig
        if mig and not free_capacity.unfit(device, wanted.selector):
            yield mig_placement.lacking(device.profiles, room.places, mig, need), room
            continue
        if free_capacity.unfit(device, wanted.selector) or not free_capacity.has(
            device, need, datatypes.WHOLE, device.memory_bytes, untouched=True
        ):
            continue
        vmemory = device.memory_bytes if need.whole else need.vmemory
        yield (
            max(
                (need.vcore - room.vcore) / datatypes.WHOLE,
                (vmemory - room.vmemory) / device.memory_bytes,
                0.0,
            ),
            room,
        )


def _near(
    known: cache.Cache, pod: pod_request.PodRequest, name: str, room: free_capacity.FreeCapacity
) -> Near | None:
    with known.lock:
        info = known.nodes.get(name)
        if info is None or not info.unit:
            return None
        wanted = info.wanted(pod)
        need = wanted.containers[0].need
        if len(wanted.containers) > 1 or need.count > 1:
            return Near(name, "", "has room for a part of it", _ending(info, pod))
        there = [
            holding for holding in info.held({pod.uid}) if holding.share.uuid == room.device.uuid
        ]
        remedies = _ending(info, pod)
        if mig := wanted.selector.mig:
            device, held = room.device, f" ({free_capacity.holders(there)})" if there else ""
            text = mig_placement.short(device.profiles, room.places, mig, need)
            smaller = _smaller(room, mig, info.unit)
            return Near(name, device.label, f"{text}{held}", (*remedies, *smaller))
        text = free_capacity.short(room, need, there)
    if not need.whole and room.vcore >= 1 and room.vmemory >= room.device.least_bytes:
        vmemory = min(need.vmemory, room.vmemory) // info.unit * info.unit
        if vmemory >= room.device.least_bytes:
            asked = free_capacity.text_of(min(need.vcore, room.vcore), vmemory)
            remedies = (*remedies, f"it asked for {asked}")
    return Near(name, room.device.label, text, remedies)


def _smaller(room: free_capacity.FreeCapacity, wanted: str, unit: int) -> tuple[str, ...]:
    """Return the request that would get the largest MIG instance for which a GPU has a place."""
    profiles = room.device.profiles
    for profile in mig_placement.possible(profiles, room.places):
        vcore, size = mig_placement.vcore(profiles, profile), profile.memory_bytes // unit * unit
        amounts = f"{vcore} vcore and {quantity.format_exact(size)}"
        if wanted == mig_placement.SMALLEST:
            return (f"it asked for {amounts}",)
        return (f"it asked for {profile.name}, which has {amounts}",)
    return ()


def _ending(info: NodeInfo, pod: pod_request.PodRequest) -> tuple[str, ...]:
    """Return the pods whose end would make *pod* fit, whatever the priorities."""
    above = dataclasses.replace(pod, priority=ABOVE_ALL)
    try:
        plan = victims.choose(info, above, datatypes.Packing.BINPACK)
    except errors.UsageError:
        return ()
    if plan is None or not 1 <= len(plan.victims) <= MOST_ENDING:
        return ()
    return (f"{' and '.join(victim.key for victim in plan.victims)} ended",)


def _lines(
    info: NodeInfo, pod: pod_request.PodRequest, why: index.RefusalReason
) -> tuple[placement_explanation.DeviceReason, ...]:
    """Return why each device of a node refuses *pod*."""
    if why in (
        index.RefusalReason.UNKNOWN,
        index.RefusalReason.DAMAGED,
        index.RefusalReason.NONSENSE,
    ):
        text = f"{why.value}: {info.trouble}" if info.trouble else why.value
        return (placement_explanation.DeviceReason("", "", "", text),)
    node = datatypes.NodeDevices(info.devices, tuple(info.held({pod.uid})))
    return placement_explanation.reasons(node, pod_request.called(pod, info.wanted(pod)))


def _asked(known: cache.Cache, pod: pod_request.PodRequest) -> str:
    """Return the request of *pod* in words, with the memory unit of any known node."""
    unit = next((info.unit for info in list(known.nodes.values()) if info.unit), 0)
    several, mig = len(pod.names) > 1, pod.shape.selector.mig
    parts = [
        (f"{name}: " if several else "") + _part(part, unit)
        for name, part in zip(pod.names, pod.shape.parts, strict=True)
    ]
    if not mig:
        return ", ".join(parts)
    kind = "of any profile" if mig == mig_placement.SMALLEST else mig
    if all(part.vcore * part.units * unit <= _LEAST for part in pod.shape.parts):
        return f"{f'{len(parts)} MIG instances' if several else 'a MIG instance'} {kind}"
    return f"{'MIG instances' if several else 'a MIG instance'} {kind} with {', '.join(parts)}"


def _part(part: pod_request.ContainerRequest, unit: int) -> str:
    size = quantity.format_size(part.units * unit) if unit else f"{part.units} units"
    text = f"{part.vcore} vcore" + (f" and {size}" if part.units else "")
    if part.count is not None and part.count > 1:
        return f"{text} on {part.count} devices"
    return text


def _listed(gpus: Sequence[str]) -> str:
    """Return the first of some names as text."""
    more = len(gpus) - _MOST_LISTED
    return ", ".join(gpus[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


def _cut(text: str) -> str:
    """Truncate *text* to the limit of an event's message."""
    if len(text.encode()) <= MOST_EVENT_BYTES:
        return text
    return text.encode()[: MOST_EVENT_BYTES - 3].decode(errors="ignore") + "..."


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return *rows* as text, below the column headings."""
    listed = [ROW, *rows]
    widths = [max(len(row[at]) for row in listed) for at in range(len(ROW) - 1)]
    return "\n".join(
        "  ".join(
            [
                *(text.ljust(width) for text, width in itertools.zip_longest(row[:-1], widths)),
                row[-1],
            ]
        )
        for row in listed
    )
