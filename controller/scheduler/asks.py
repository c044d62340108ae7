"""What a pod asks of devices, read from the pod as the API server has it.

All that is known of a pod is one small record, since there are a hundred thousand. What it asks
for is kept apart from who asks: pods of the same :class:`Shape` are judged alike, so they share
one object, and with it what is known of each node.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import sys
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import amounts, facts, requests, wanted
from pyvgpu.controller import objects
from pyvgpu.controller.scheduler import choices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyvgpu.controller.objects import Object

    Shares = Mapping[str, Sequence[facts.Share]]  # by container

RESOURCES = (  # of which a pod asks for one pair: compute, memory
    (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE),
    (names.GAIA_VCORE_RESOURCE, names.GAIA_VMEMORY_RESOURCE),
)
MOST_CONTAINERS = 32  # of a pod that ask for devices: each is looked at on every node
MOST_MEMBERS = 1000  # of a gang
MOST_SECONDS = 3600.0
GANG_SECONDS = 60.0  # in which a gang must be bound, if its pods do not say
SUCCEEDED = "Succeeded"
OVER = frozenset({SUCCEEDED, "Failed"})
ALWAYS, NEVER = "Always", "Never"


class Policy(enum.Enum):
    """Which of several nodes with room a pod would rather have."""

    BINPACK = "binpack"  # the fullest, so that others stay empty
    SPREAD = "spread"  # the emptiest
    TOPOLOGY = "topology"  # the one where its devices are nearest to each other


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What one container asks for, in the numbers of its resources."""

    kind: facts.Kind
    vcore: int
    units: int  # of vmemory
    count: int | None = None  # devices on which that is spread; None: as requests.read has it


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks for, whatever its containers are called."""

    parts: tuple[Part, ...]
    selector: facts.Selector = facts.ANY
    nearness: facts.Nearness = facts.Nearness.PREFERRED


@dataclasses.dataclass(frozen=True, slots=True)
class Gang:
    """Pods that run all together, or none of them."""

    name: str  # namespace/name
    size: int
    seconds: float = GANG_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """What is known of a pod that asks for devices."""

    key: str  # namespace/name
    uid: str
    shape: Shape
    names: tuple[str, ...]  # of the containers, in the order of the shape
    node: str = ""  # empty: not bound
    nominated: str = ""  # the node for which the scheduler is ending others
    priority: int = 0
    created: float = 0.0  # seconds, by the API server's clock
    policy: Policy | None = None  # None: the configuration's
    packing: facts.Packing | None = None
    gang: Gang | None = None
    held: tuple[facts.Holding, ...] | None = None  # by a sealed choice; None: there is none
    scheduled: float = 0.0  # of a gang's: when it was bound, by the API server's clock
    over: bool = False  # it has ended
    succeeded: bool = False  # and well
    leaving: bool = False  # it is being deleted
    gated: bool = False  # the scheduler is not to look at it yet
    preempts: bool = True
    trouble: str = ""  # why what it asks for cannot be had; empty: it can be judged

    @property
    def waits(self) -> bool:
        """Whether it is still to be bound."""
        return not (self.node or self.over or self.leaving or self.gated)


def read(pod: Object, keys: Sequence[bytes] | None = (), *, unit: int | None = None) -> Pod | None:
    """Return what is known of *pod*; None if it asks for no device of ours.

    *keys* are those of which any may have sealed what was chosen for it; None: whoever wrote it
    is believed, which is for showing alone. *unit* is the bytes of one vmemory, where that is
    known: more units than any device has are trouble then.
    """
    spec = objects.section(pod, "spec")
    asking = tuple(_asking(spec))
    if not asking:
        return None
    meta, status = objects.section(pod, "metadata"), objects.section(pod, "status")
    noted = objects.section(meta, "annotations")
    namespace = str(meta.get("namespace") or "")
    key, uid = f"{namespace}/{meta.get('name')}", str(meta.get("uid") or "")
    node = sys.intern(str(spec.get("nodeName") or ""))
    kinds = {name: kind for name, kind, _ in asking}
    try:
        asked = _asked(asking, noted, namespace, unit)
    except errors.UsageError as exc:
        asked = _Asked(names=tuple(name for name, _, _ in asking), trouble=str(exc))
    if not asked.names:  # all that it asks for is nothing
        return None
    return Pod(
        key=key,
        uid=uid,
        shape=asked.shape,
        names=asked.names,
        node=node,
        nominated=str(status.get("nominatedNodeName") or ""),
        priority=int(spec.get("priority") or 0),
        created=_seconds(meta.get("creationTimestamp")),
        policy=asked.policy,
        packing=asked.packing,
        gang=asked.gang,
        held=choices.read(noted, keys, (key, uid, node), kinds) if node else None,
        scheduled=_scheduled(status) if asked.gang and node else 0.0,
        over=status.get("phase") in OVER,
        succeeded=status.get("phase") == SUCCEEDED,
        leaving=bool(meta.get("deletionTimestamp")),
        gated=bool(spec.get("schedulingGates")),
        preempts=spec.get("preemptionPolicy") != NEVER,
        trouble=asked.trouble,
    )


def check(pod: Object) -> None:
    """Raise UsageError, with the container and what would be valid, if *pod* asks for nonsense."""
    found = read(pod)
    if found is not None and found.trouble:
        raise errors.UsageError(found.trouble)


def needs(container: Object, unit: int | None = None) -> tuple[int, int]:
    """Return the vcore and the units of vmemory that *container* asks for, as they stand there.

    *unit* is the bytes of a unit, for messages. UsageError for what is no whole number, or for
    resources of two kinds.
    """
    limits, asked = (objects.section(container, "resources", it) for it in ("limits", "requests"))
    pairs = [pair for pair in RESOURCES if any(name in limits or name in asked for name in pair)]
    if len(pairs) > 1:
        raise errors.UsageError(
            f"{pairs[0][0]} and {pairs[1][0]}: must not both be asked for; "
            f"{names.VCORE_RESOURCE} and {names.VMEMORY_RESOURCE} would do"
        )
    if not pairs:
        return 0, 0
    compute, memory = pairs[0]
    vcore = amounts.whole(limits.get(compute, asked.get(compute, "0")), compute)
    units = amounts.units(limits.get(memory, asked.get(memory, "0")), memory, unit)
    return vcore, units


def is_of_gaia(container: Object) -> bool:
    """Tell whether *container* asks in gpu-manager's words."""
    return any(
        name in objects.section(container, "resources", it)
        for it in _SECTIONS
        for name in RESOURCES[1]
    )


@functools.lru_cache(maxsize=8192)
def pod_of(shape: Shape, unit: int, packing: facts.Packing = facts.Packing.BINPACK) -> facts.Pod:
    """Return what *shape* means where a unit of vmemory is *unit* bytes.

    Its containers are called by their numbers. UsageError if it means nothing.
    """
    return facts.Pod(
        tuple(
            facts.Container(
                str(number), requests.read(it.vcore, it.units * unit, it.count), it.kind
            )
            for number, it in enumerate(shape.parts)
        ),
        packing=packing,
        nearness=shape.nearness,
        selector=shape.selector,
    )


def named(pod: Pod, shares: Shares) -> dict[str, tuple[facts.Share, ...]]:
    """Return *shares* of containers by number as those of the containers of *pod* by name."""
    return {pod.names[int(number)]: tuple(own) for number, own in shares.items()}


def called(pod: Pod, wanted: facts.Pod) -> facts.Pod:
    """Return *wanted*, of containers by number, with those of *pod* by name: to speak of them."""
    containers = (
        dataclasses.replace(it, name=name)
        for it, name in zip(wanted.containers, pod.names, strict=True)
    )
    return dataclasses.replace(wanted, containers=tuple(containers))


_Asking = tuple[str, facts.Kind, "Object"]  # a container: name, when it runs, all of it
_NOTHING = Shape(())
_ASKED_FOR = frozenset(name for pair in RESOURCES for name in pair)
_SECTIONS = ("limits", "requests")


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """What a pod asks for, or why that is nonsense."""

    shape: Shape = _NOTHING
    names: tuple[str, ...] = ()
    policy: Policy | None = None
    packing: facts.Packing | None = None
    gang: Gang | None = None
    trouble: str = ""


def _asking(spec: Object) -> Iterator[_Asking]:
    """Give the containers that name one of our resources, in the order of their starts."""
    for part in ("initContainers", "containers"):
        for entry in objects.entries(spec, part):
            if "resources" in entry and any(
                not _ASKED_FOR.isdisjoint(objects.section(entry, "resources", it))
                for it in _SECTIONS
            ):
                kind = facts.Kind.APP
                if part != "containers":
                    always = entry.get("restartPolicy") == ALWAYS
                    kind = facts.Kind.SIDECAR if always else facts.Kind.INIT
                yield str(entry.get("name") or ""), kind, entry


def _asked(asking: Iterable[_Asking], noted: Object, namespace: str, unit: int | None) -> _Asked:
    wish = wanted.read(noted)
    found = []
    for name, kind, entry in asking:
        try:
            vcore, units = needs(entry, unit)
            if vcore or units:
                count = wish.count_of(name)
                need = requests.read(vcore, units, count)
                if unit is not None:
                    memory = RESOURCES[is_of_gaia(entry)][1]
                    amounts.check_units(units, unit, need.count, memory)
                found.append((name, Part(kind, vcore, units, count)))
        except errors.UsageError as exc:
            raise errors.UsageError(f"container {name}: {exc}") from exc
    if len(found) > MOST_CONTAINERS:
        raise errors.UsageError(
            f"{len(found)} containers ask for devices: must be no more than {MOST_CONTAINERS} of "
            "one pod; valid would be several pods, such as of one gang"
        )
    parts = tuple(part for _, part in found)
    return _Asked(
        _shape(parts, wish.selector, wish.nearness or facts.Nearness.PREFERRED),
        _kept(tuple(name for name, _ in found)),
        _policy(noted),
        wish.packing,
        _gang(noted, namespace),
    )


@functools.lru_cache(maxsize=4096)
def _shape(parts: tuple[Part, ...], selector: facts.Selector, nearness: facts.Nearness) -> Shape:
    """Return the one object of this shape."""
    # To compare selectors takes long, and most are this one.
    return Shape(parts, facts.ANY if selector == facts.ANY else selector, nearness)


@functools.lru_cache(maxsize=4096)
def _kept(listed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the one object that is equal to *listed*."""
    return listed


def _policy(noted: Object) -> Policy | None:
    text = noted.get(names.PLACEMENT_ANNOTATION)
    return None if text is None else read_policy(str(text), names.PLACEMENT_ANNOTATION)


def read_policy(text: str, option: str) -> Policy:
    """Return the policy called *text*; UsageError, in which *option* says where it stands."""
    try:
        return Policy(text)
    except ValueError as exc:
        raise errors.UsageError(
            f"{option} {text[:40]!r}: must be binpack, spread or topology"
        ) from exc


def _gang(noted: Object, namespace: str) -> Gang | None:
    name, size, seconds = (
        noted.get(it)
        for it in (
            names.GANG_ANNOTATION,
            names.GANG_SIZE_ANNOTATION,
            names.GANG_SECONDS_ANNOTATION,
        )
    )
    if name is None:
        for key, text in (
            (names.GANG_SIZE_ANNOTATION, size),
            (names.GANG_SECONDS_ANNOTATION, seconds),
        ):
            if text is not None:
                raise errors.UsageError(
                    f"{key} {text!r}: means nothing without {names.GANG_ANNOTATION}, such as "
                    "training-7, which all pods of the gang have"
                )
        return None
    if not name or len(str(name)) > _LONGEST_NAME:
        raise errors.UsageError(
            f"{names.GANG_ANNOTATION} {str(name)[:40]!r}: must be a name of 1 to "
            f"{_LONGEST_NAME} letters, such as training-7"
        )
    count = _from_to(size, names.GANG_SIZE_ANNOTATION, MOST_MEMBERS)
    given = GANG_SECONDS
    if seconds is not None:
        given = float(_from_to(seconds, names.GANG_SECONDS_ANNOTATION, int(MOST_SECONDS)))
    return Gang(sys.intern(f"{namespace}/{name}"), count, given)


_LONGEST_NAME = 253
_MOST_DIGITS = 15


def _from_to(text: object, option: str, most: int) -> int:
    written = "" if text is None else str(text)
    if not (written.isdecimal() and len(written) <= _MOST_DIGITS and 1 <= int(written) <= most):
        raise errors.UsageError(
            f"{option} {written[:40]!r}: must be a whole number from 1 to {most}, such as 4"
        )
    return int(written)


def _scheduled(status: Object) -> float:
    for condition in objects.entries(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return _seconds(condition.get("lastTransitionTime"))
    return 0.0


def _seconds(text: object) -> float:
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
