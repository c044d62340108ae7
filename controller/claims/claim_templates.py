"""Translate a container's request into a ResourceClaimTemplate for kube-scheduler; pure.

A template's name is a hash of its spec, so containers with equal requests share one, and its
creator keeps no state.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import datatypes, elastic, mig_placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyvgpu.kube.objects import Object

CLASS = "vgpu"  # the chart's DeviceClass
MIG_CLASS = "vgpu-mig"  # that of MIG partitions
REQUEST = "vgpu"  # the name of a claim's only request
SHARE, WHOLE = "pyvgpu-share-", "pyvgpu-whole-"  # prefixes of template names
STEP: int = quantity.UNITS["Mi"]  # the step of vmemory in slices
MOST_CEL = 10 * 1024  # Kubernetes' limit for one expression, in characters

_ATTRIBUTES = f'device.attributes["{names.DRA_DRIVER}"]'
_CAPACITY = f'device.capacity["{names.DRA_DRIVER}"]'
_TOGETHER = {
    datatypes.Nearness.NVLINK: names.DRA_NVLINK_GROUP,
    datatypes.Nearness.NUMA: names.DRA_NUMA,
}


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimShape:
    """What one claim requests."""

    need: datatypes.ContainerNeed
    selector: datatypes.Selector = datatypes.ANY
    nearness: datatypes.Nearness = datatypes.Nearness.PREFERRED
    time_sharing: elastic.TimeSharing | None = (
        None  # for spare device time; None: no configuration
    )


@dataclasses.dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a pod, and the containers that use it."""

    need: datatypes.ContainerNeed
    containers: tuple[str, ...]


def name_of(spec: Object, need: datatypes.ContainerNeed) -> str:
    """Return the name of the template that has *spec*."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{WHOLE if need.whole else SHARE}{digest}"


def is_ours(name: object) -> bool:
    """Return whether a template of this name is one of ours."""
    return isinstance(name, str) and name.startswith((SHARE, WHOLE))


def claims_of(containers: Iterable[datatypes.Container]) -> tuple[PodClaim, ...]:
    """Return the claims that *containers* of a pod need, each with the containers that use it.

    A pod holds all its claims for its whole life. So an init container uses the claim of an app
    container that requests at least as much, because the two never run at once. The other init
    containers share one claim per device count, with the maximum that any of them requests.
    """
    listed = list(containers)
    claims = [
        PodClaim(one.need, (one.name,))
        for one in listed
        if one.kind is not datatypes.ContainerKind.INIT
    ]
    apps = {one.name for one in listed if one.kind is datatypes.ContainerKind.APP}
    alone: dict[int, PodClaim] = {}  # by the number of devices
    for init in (one for one in listed if one.kind is datatypes.ContainerKind.INIT):
        enough = [
            at
            for at, claim in enumerate(claims)
            if claim.containers[0] in apps and _covers(claim.need, init.need)
        ]
        if enough:
            at = min(enough, key=lambda i: (claims[i].need.vcore, claims[i].need.vmemory))
            claims[at] = _joined(claims[at], init)
        else:
            one = alone.get(init.need.count, PodClaim(init.need, ()))
            alone[init.need.count] = _joined(one, init)
    return (*claims, *alone.values())


def spec_of(shape: ClaimShape) -> dict[str, Any]:
    """Return the spec of claims of this shape, including the API server's defaults.

    UsageError for a selector that is longer than a claim allows, or that partitions do not have.
    """
    need, mig = shape.need, shape.selector.mig
    asked: dict[str, Any] = {
        "deviceClassName": MIG_CLASS if mig else CLASS,
        "allocationMode": "ExactCount",
        "count": need.count,
    }
    selectors = [
        {"cel": {"expression": _checked(expression)}} for expression in _expressions(shape)
    ]
    if selectors:
        asked["selectors"] = selectors
    if mig or not need.whole:
        sizes = {names.DRA_VCORE: str(need.vcore)}
        if need.vmemory:
            sizes[names.DRA_VMEMORY] = _size(need.vmemory)
        asked["capacity"] = {"requests": sizes}
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": asked}]}
    constraints = list(_constraints(shape))
    if constraints:
        devices["constraints"] = constraints
    if shape.time_sharing is not None and not (mig or need.whole):
        opaque = {
            "driver": names.DRA_DRIVER,
            "parameters": elastic.parameters_of(shape.time_sharing),
        }
        devices["config"] = [{"opaque": opaque}]
    return {"devices": devices}


def _covers(had: datatypes.ContainerNeed, need: datatypes.ContainerNeed) -> bool:
    enough = had.whole or (not need.whole and had.vmemory >= need.vmemory)
    return had.count == need.count and had.vcore >= need.vcore and enough


def _joined(claim: PodClaim, container: datatypes.Container) -> PodClaim:
    one, two = claim.need, container.need
    most = datatypes.ContainerNeed(
        max(one.vcore, two.vcore), max(one.vmemory, two.vmemory), one.count
    )
    return PodClaim(most, (*claim.containers, container.name))


def _constraints(shape: ClaimShape) -> Iterator[dict[str, str]]:
    if shape.need.count < 2:
        return
    if not shape.need.whole:  # otherwise one device could be chosen twice
        yield {"distinctAttribute": f"{names.DRA_DRIVER}/{names.DRA_UUID}"}
    if shape.nearness in _TOGETHER:
        yield {"matchAttribute": f"{names.DRA_DRIVER}/{_TOGETHER[shape.nearness]}"}


def _expressions(shape: ClaimShape) -> Iterator[str]:
    """Yield the conditions on devices in CEL; a missing optional attribute is not an error."""
    chosen = shape.selector
    if chosen.mig:
        yield from _of_partitions(chosen)
        chosen = dataclasses.replace(chosen, least_memory=0)
    uuid = f"{_ATTRIBUTES}.{names.DRA_UUID}"
    model = f"{_ATTRIBUTES}.{names.DRA_MODEL}.lowerAscii()"
    if chosen.uuids:
        yield f"{uuid} in {_list(chosen.uuids)}"
    if chosen.not_uuids:
        yield f"!({uuid} in {_list(chosen.not_uuids)})"
    if chosen.models:
        yield " || ".join(f"{model}.contains({_text(wanted)})" for wanted in _lower(chosen.models))
    for unwanted in _lower(chosen.not_models):
        yield f"!{model}.contains({_text(unwanted)})"
    if chosen.classes:
        attribute = f'{_ATTRIBUTES}.?{names.DRA_COMPUTE_CLASS}.orValue("")'
        yield f"{attribute} in {_list(chosen.classes)}"
    if chosen.numa is not None:
        yield f"{_ATTRIBUTES}.?{names.DRA_NUMA}.orValue(-1) == {chosen.numa}"
    whole = shape.need.whole and not chosen.mig
    least = max(chosen.least_memory, shape.need.vmemory if whole else 0)
    if least:
        size = f"{_CAPACITY}.{names.DRA_VMEMORY}"
        yield f"{size}.compareTo(quantity({_text(_size(least))})) >= 0"


def _of_partitions(chosen: datatypes.Selector) -> Iterator[str]:
    if chosen.least_memory:
        raise errors.UsageError(
            f"{names.DEVICE_MEMORY_ANNOTATION} with {names.MIG_ANNOTATION} or "
            f"{names.ISOLATION_ANNOTATION} hardware: a MIG partition does not tell the memory of "
            f"its GPU; valid would be {names.DEVICE_MODELS_ANNOTATION} H100, or more "
            f"{names.VMEMORY_RESOURCE}"
        )
    if chosen.mig != mig_placement.SMALLEST:
        yield f"{_ATTRIBUTES}.{names.DRA_MIG_PROFILE} == {_text(chosen.mig)}"


def _checked(expression: str) -> str:
    if len(expression) > MOST_CEL:
        raise errors.UsageError(
            f"annotations that select devices: make {len(expression)} characters of CEL, and a "
            f"claim allows {MOST_CEL}; name models or classes, or fewer devices"
        )
    return expression


def _lower(words: Iterable[str]) -> list[str]:
    return sorted({word.lower() for word in words})


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, sorted(words)))}]"


def _text(word: str) -> str:
    """Return *word* as a CEL literal; CEL knows all escapes of JSON."""
    return json.dumps(word, ensure_ascii=False)


def _size(size: int) -> str:
    """Format bytes as Kubernetes does, rounded up to the step of the slices."""
    return quantity.format_exact(-(-size // STEP) * STEP).removesuffix("B")
