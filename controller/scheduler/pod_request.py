"""Parse a pod's device request into a small record.

A record is small since there may be a hundred thousand pods. The request is stored apart from the
pod: pods of the same :class:`PodShape` have the same results on each node, so they share one
object, and with it these results.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import sys
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import (
    amounts,
    datatypes,
    device_selector,
    requests,
)
from pyvgpu.controller.scheduler import choices, other_groups
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyvgpu.kube.objects import Object

    Shares = Mapping[str, Sequence[datatypes.NodeShare]]  # by container

RESOURCES = (  # a container requests one of these pairs: compute, memory
    (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE),
    (names.GAIA_VCORE_RESOURCE, names.GAIA_VMEMORY_RESOURCE),
)
# The resources of pods that request devices; the webhook converts the last one.
ASKED_FOR = frozenset((*(name for pair in RESOURCES for name in pair), names.VMEMORY_MIB_RESOURCE))
MOST_CONTAINERS = 32  # with devices, of one pod: each is evaluated on every node
MOST_MEMBERS = 1000  # of a gang
MOST_SECONDS = 3600.0
GANG_SECONDS = 60.0  # to bind all of a gang, if its pods do not say
SUCCEEDED = "Succeeded"
OVER = frozenset({SUCCEEDED, "Failed"})
ALWAYS, NEVER = "Always", "Never"


class NodePolicy(enum.Enum):
    """Which node with room a pod prefers."""

    BINPACK = "binpack"  # the fullest, so that others stay empty
    SPREAD = "spread"  # the emptiest
    TOPOLOGY = "topology"  # the one where its devices are nearest to each other


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The request of one container, in the numbers of its resources."""

    kind: datatypes.ContainerKind
    vcore: int
    units: int  # of vmemory
    count: int | None = None  # of devices to spread it over; None: requests.read decides


@dataclasses.dataclass(frozen=True, slots=True)
class PodShape:
    """The request of a pod, without the names of its containers."""

    parts: tuple[ContainerRequest, ...]
    selector: datatypes.Selector = datatypes.ANY
    nearness: datatypes.Nearness = datatypes.Nearness.PREFERRED


@dataclasses.dataclass(frozen=True, slots=True)
class Gang:
    """Pods of which all run together, or none."""

    name: str  # namespace/name
    size: int
    seconds: float = GANG_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class PodRequest:
    """The record of a pod that requests devices."""

    key: str  # namespace/name
    uid: str
    shape: PodShape
    names: tuple[str, ...]  # of the containers, in the order of the shape
    node: str = ""  # empty: not bound
    nominated: str = ""  # the node on which kube-scheduler preempts others for it
    priority: int = 0
    created: float = 0.0  # seconds, by the API server's clock
    policy: NodePolicy | None = None  # None: the configuration's
    packing: datatypes.Packing | None = None
    gang: Gang | None = None
    group: str = ""  # namespace/name of another system's group; see other_groups.py
    held: tuple[datatypes.Holding, ...] | None = None  # by a sealed choice; None: has none
    scheduled: float = 0.0  # for gangs: when it was bound, by the API server's clock
    over: bool = False  # it has ended
    succeeded: bool = False  # it has ended without failure
    leaving: bool = False  # it is being deleted
    gates: tuple[str, ...] = ()  # its schedulingGates: while it has any, it is not scheduled
    preempts: bool = True
    trouble: str = ""  # why its request is invalid; empty: it is valid

    @property
    def waits(self) -> bool:
        """Whether it is pending."""
        return self._unbound and not self.gates

    @property
    def gated(self) -> bool:
        """Whether its schedulingGates keep it from being scheduled."""
        return self._unbound and bool(self.gates)

    @property
    def _unbound(self) -> bool:
        return not (self.node or self.over or self.leaving)


def read(
    pod: Object, keys: Sequence[bytes] | None = (), *, unit: int | None = None
) -> PodRequest | None:
    """Return the record of *pod*; None if it requests no device of ours.

    Any of *keys* may have sealed its choice; None: the choice is believed without a seal, which
    is for display only. *unit* is the bytes of one vmemory, if known: then a request for more
    units than any device has is trouble.
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
        asked = _Parsed(names=tuple(name for name, _, _ in asking), trouble=str(exc))
    if not asked.names:  # its requests are all zero
        return None
    return PodRequest(
        key=key,
        uid=uid,
        shape=asked.shape,
        names=asked.names,
        node=node,
        nominated=str(status.get("nominatedNodeName") or ""),
        priority=int(spec.get("priority") or 0),
        created=seconds(meta.get("creationTimestamp")),
        policy=asked.policy,
        packing=asked.packing,
        gang=asked.gang,
        group="" if asked.gang else other_groups.name_of(pod),
        held=choices.read(noted, keys, (key, uid, node), kinds) if node else None,
        scheduled=_scheduled(status) if asked.gang and node else 0.0,
        over=status.get("phase") in OVER,
        succeeded=status.get("phase") == SUCCEEDED,
        leaving=bool(meta.get("deletionTimestamp")),
        gates=tuple(
            sys.intern(str(gate.get("name"))) for gate in objects.entries(spec, "schedulingGates")
        ),
        preempts=spec.get("preemptionPolicy") != NEVER,
        trouble=asked.trouble,
    )


def check(pod: Object) -> None:
    """Raise UsageError, with the container and a valid example, if *pod*'s request is invalid."""
    found = read(pod)
    if found is not None and found.trouble:
        raise errors.UsageError(found.trouble)


def needs(container: Object, unit: int | None = None) -> tuple[int, int]:
    """Return the vcore and the units of vmemory that *container* requests, as written.

    *unit* is the bytes of a unit, for messages. UsageError for a value that is no whole number,
    for resources of both kinds, or for memory in MiB that the webhook has not converted.
    """
    limits, asked = (
        objects.section(container, "resources", section) for section in ("limits", "requests")
    )
    if names.VMEMORY_MIB_RESOURCE in limits or names.VMEMORY_MIB_RESOURCE in asked:
        raise errors.UsageError(
            f"{names.VMEMORY_MIB_RESOURCE}: no node has that resource; the admission webhook "
            f"converts it in new pods, and has not seen this one; valid would be "
            f"{names.VMEMORY_RESOURCE} 16"
        )
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
    """Return whether *container* requests gpu-manager's resources."""
    return any(
        name in objects.section(container, "resources", section)
        for section in _SECTIONS
        for name in RESOURCES[1]
    )


@functools.lru_cache(maxsize=8192)
def pod_of(
    shape: PodShape, unit: int, packing: datatypes.Packing = datatypes.Packing.BINPACK
) -> datatypes.Pod:
    """Return the request of *shape* where a unit of vmemory is *unit* bytes.

    Its containers are named by their numbers. UsageError if it is invalid in that unit.
    """
    return datatypes.Pod(
        tuple(
            datatypes.Container(
                str(number), requests.read(part.vcore, part.units * unit, part.count), part.kind
            )
            for number, part in enumerate(shape.parts)
        ),
        packing=packing,
        nearness=shape.nearness,
        selector=shape.selector,
    )


def named(pod: PodRequest, shares: Shares) -> dict[str, tuple[datatypes.NodeShare, ...]]:
    """Return *shares*, keyed by container number, keyed by the names in *pod*."""
    return {pod.names[int(number)]: tuple(own) for number, own in shares.items()}


def called(pod: PodRequest, wanted: datatypes.Pod) -> datatypes.Pod:
    """Return *wanted* with the container names of *pod* for numbers, for messages."""
    containers = (
        dataclasses.replace(container, name=name)
        for container, name in zip(wanted.containers, pod.names, strict=True)
    )
    return dataclasses.replace(wanted, containers=tuple(containers))


_Asking = tuple[str, datatypes.ContainerKind, "Object"]  # a container: name, kind, whole object
_NOTHING = PodShape(())
_SECTIONS = ("limits", "requests")


@dataclasses.dataclass(frozen=True, slots=True)
class _Parsed:
    """The request of a pod, or why it is invalid."""

    shape: PodShape = _NOTHING
    names: tuple[str, ...] = ()
    policy: NodePolicy | None = None
    packing: datatypes.Packing | None = None
    gang: Gang | None = None
    trouble: str = ""


def _asking(spec: Object) -> Iterator[_Asking]:
    """Yield the containers that name one of our resources, in the order of their starts."""
    for part in ("initContainers", "containers"):
        for entry in objects.entries(spec, part):
            if "resources" in entry and any(
                not ASKED_FOR.isdisjoint(objects.section(entry, "resources", section))
                for section in _SECTIONS
            ):
                kind = datatypes.ContainerKind.APP
                if part != "containers":
                    always = entry.get("restartPolicy") == ALWAYS
                    kind = (
                        datatypes.ContainerKind.SIDECAR if always else datatypes.ContainerKind.INIT
                    )
                yield str(entry.get("name") or ""), kind, entry


def _asked(asking: Iterable[_Asking], noted: Object, namespace: str, unit: int | None) -> _Parsed:
    selection = device_selector.read(noted)
    found = []
    for name, kind, entry in asking:
        try:
            vcore, units = needs(entry, unit)
            if vcore or units:
                count = selection.count_of(name)
                need = requests.read(vcore, units, count)
                device_selector.check_need(selection.selector, need)
                if unit is not None:
                    memory = RESOURCES[is_of_gaia(entry)][1]
                    amounts.check_units(units, unit, need.count, memory)
                found.append((name, ContainerRequest(kind, vcore, units, count)))
        except errors.UsageError as exc:
            raise errors.UsageError(f"container {name}: {exc}") from exc
    if len(found) > MOST_CONTAINERS:
        raise errors.UsageError(
            f"{len(found)} containers ask for devices: must be no more than {MOST_CONTAINERS} of "
            "one pod; valid would be several pods, such as of one gang"
        )
    parts = tuple(part for _, part in found)
    return _Parsed(
        _shape(parts, selection.selector, selection.nearness or datatypes.Nearness.PREFERRED),
        _kept(tuple(name for name, _ in found)),
        _policy(noted),
        selection.packing,
        _gang(noted, namespace),
    )


@functools.lru_cache(maxsize=4096)
def _shape(
    parts: tuple[ContainerRequest, ...], selector: datatypes.Selector, nearness: datatypes.Nearness
) -> PodShape:
    """Return the shared object of this shape."""
    # Comparing selectors is slow, and most are this one.
    return PodShape(parts, datatypes.ANY if selector == datatypes.ANY else selector, nearness)


@functools.lru_cache(maxsize=4096)
def _kept(listed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shared object that is equal to *listed*."""
    return listed


def _policy(noted: Object) -> NodePolicy | None:
    text = noted.get(names.PLACEMENT_ANNOTATION)
    return None if text is None else read_policy(str(text), names.PLACEMENT_ANNOTATION)


def read_policy(text: str, option: str) -> NodePolicy:
    """Return the policy called *text*; UsageError, which names *option*, if there is none."""
    try:
        return NodePolicy(text)
    except ValueError as exc:
        raise errors.UsageError(
            f"{option} {text[:40]!r}: must be binpack, spread or topology, such as spread"
        ) from exc


def _gang(noted: Object, namespace: str) -> Gang | None:
    name, size, seconds = (
        noted.get(annotation)
        for annotation in (
            names.GANG_ANNOTATION,
            names.GANG_SIZE_ANNOTATION,
            names.GANG_TIMEOUT_ANNOTATION,
        )
    )
    if name is None:
        for key, text in (
            (names.GANG_SIZE_ANNOTATION, size),
            (names.GANG_TIMEOUT_ANNOTATION, seconds),
        ):
            if text is not None:
                raise errors.UsageError(
                    f"{key} {text!r}: has no effect without {names.GANG_ANNOTATION}, such as "
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
        given = float(_from_to(seconds, names.GANG_TIMEOUT_ANNOTATION, int(MOST_SECONDS)))
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
            return seconds(condition.get("lastTransitionTime"))
    return 0.0


def seconds(text: object) -> float:
    """Return a time of the API server in seconds; 0 if there is none."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
