"""What a container asks for, as a template of claims for the default scheduler; pure.

A template is called by what is in it, so that containers that ask alike share one, and whoever
makes it needs no memory of those that were made.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import facts, spare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyvgpu.controller.objects import Object

CLASS = "vgpu"  # of devices, as the chart has it
REQUEST = "vgpu"  # the one request of a claim
SHARE, WHOLE = "pyvgpu-share-", "pyvgpu-whole-"  # what names of templates begin with
STEP: int = quantity.UNITS["Mi"]  # of vmemory in slices
MOST_CEL = 10 * 1024  # characters of one expression, by Kubernetes' rule

_ATTRIBUTES = f'device.attributes["{names.DRA_DRIVER}"]'
_CAPACITY = f'device.capacity["{names.DRA_DRIVER}"]'
_TOGETHER = {
    facts.Nearness.NVLINK: names.DRA_NVLINK_GROUP,
    facts.Nearness.NUMA: names.DRA_NUMA,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What one claim is for."""

    need: facts.Need
    selector: facts.Selector = facts.ANY
    nearness: facts.Nearness = facts.Nearness.PREFERRED
    wish: spare.Wish | None = None  # None: nothing is said of time that nobody wants


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a pod, and the containers that have it."""

    need: facts.Need
    containers: tuple[str, ...]


def name_of(spec: Object, need: facts.Need) -> str:
    """Return how the template is called that has *spec*."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{WHOLE if need.whole else SHARE}{digest}"


def is_ours(name: object) -> bool:
    """Tell whether a template called so is one of these."""
    return isinstance(name, str) and name.startswith((SHARE, WHOLE))


def claims_of(containers: Iterable[facts.Container]) -> tuple[Claim, ...]:
    """Return the claims that *containers* of a pod need, each with those that have it.

    All claims of a pod are held from its beginning to its end. So an init container has the claim
    of an app that asks for as much, beside which it never runs; and those for which no app asks
    for enough have one together, of the most that any of them asks.
    """
    listed = list(containers)
    claims = [Claim(it.need, (it.name,)) for it in listed if it.kind is not facts.Kind.INIT]
    apps = {it.name for it in listed if it.kind is facts.Kind.APP}
    alone: dict[int, Claim] = {}  # by the number of devices
    for init in (it for it in listed if it.kind is facts.Kind.INIT):
        enough = [
            at
            for at, it in enumerate(claims)
            if it.containers[0] in apps and _covers(it.need, init.need)
        ]
        if enough:
            at = min(enough, key=lambda it: (claims[it].need.vcore, claims[it].need.vmemory))
            claims[at] = _joined(claims[at], init)
        else:
            one = alone.get(init.need.count, Claim(init.need, ()))
            alone[init.need.count] = _joined(one, init)
    return (*claims, *alone.values())


def spec_of(shape: Shape) -> dict[str, Any]:
    """Return the spec of claims of this shape, with all that the API server would add.

    UsageError for a selector that no claim can have.
    """
    need = shape.need
    asked: dict[str, Any] = {
        "deviceClassName": CLASS,
        "allocationMode": "ExactCount",
        "count": need.count,
    }
    selectors = [{"cel": {"expression": _checked(it)}} for it in _expressions(shape)]
    if selectors:
        asked["selectors"] = selectors
    if not need.whole:
        sizes = {names.DRA_VCORE: str(need.vcore), names.DRA_VMEMORY: _size(need.vmemory)}
        asked["capacity"] = {"requests": sizes}
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": asked}]}
    constraints = list(_constraints(shape))
    if constraints:
        devices["constraints"] = constraints
    if shape.wish is not None and not need.whole:
        opaque = {"driver": names.DRA_DRIVER, "parameters": spare.parameters_of(shape.wish)}
        devices["config"] = [{"opaque": opaque}]
    return {"devices": devices}


def _covers(had: facts.Need, need: facts.Need) -> bool:
    enough = had.whole or (not need.whole and had.vmemory >= need.vmemory)
    return had.count == need.count and had.vcore >= need.vcore and enough


def _joined(claim: Claim, container: facts.Container) -> Claim:
    one, two = claim.need, container.need
    most = facts.Need(max(one.vcore, two.vcore), max(one.vmemory, two.vmemory), one.count)
    return Claim(most, (*claim.containers, container.name))


def _constraints(shape: Shape) -> Iterator[dict[str, str]]:
    if shape.need.count < 2:
        return
    if not shape.need.whole:  # else one device could serve twice
        yield {"distinctAttribute": f"{names.DRA_DRIVER}/{names.DRA_UUID}"}
    if shape.nearness in _TOGETHER:
        yield {"matchAttribute": f"{names.DRA_DRIVER}/{_TOGETHER[shape.nearness]}"}


def _expressions(shape: Shape) -> Iterator[str]:
    """Give what devices must be, in CEL; an attribute that may be missing must not be an error."""
    chosen = shape.selector
    uuid = f"{_ATTRIBUTES}.{names.DRA_UUID}"
    model = f"{_ATTRIBUTES}.{names.DRA_MODEL}.lowerAscii()"
    if chosen.uuids:
        yield f"{uuid} in {_list(chosen.uuids)}"
    if chosen.not_uuids:
        yield f"!({uuid} in {_list(chosen.not_uuids)})"
    if chosen.models:
        yield " || ".join(f"{model}.contains({_text(it)})" for it in _lower(chosen.models))
    for it in _lower(chosen.not_models):
        yield f"!{model}.contains({_text(it)})"
    if chosen.classes:
        attribute = f'{_ATTRIBUTES}.?{names.DRA_COMPUTE_CLASS}.orValue("")'
        yield f"{attribute} in {_list(chosen.classes)}"
    if chosen.numa is not None:
        yield f"{_ATTRIBUTES}.?{names.DRA_NUMA}.orValue(-1) == {chosen.numa}"
    least = max(chosen.least_memory, shape.need.vmemory if shape.need.whole else 0)
    if least:
        size = f"{_CAPACITY}.{names.DRA_VMEMORY}"
        yield f"{size}.compareTo(quantity({_text(_size(least))})) >= 0"


def _checked(expression: str) -> str:
    if len(expression) > MOST_CEL:
        raise errors.UsageError(
            f"annotations that say which devices will do: make {len(expression)} letters of CEL, "
            f"and a claim takes {MOST_CEL}; name models or classes, or fewer devices"
        )
    return expression


def _lower(words: Iterable[str]) -> list[str]:
    return sorted({it.lower() for it in words})


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, sorted(words)))}]"


def _text(word: str) -> str:
    """Write a literal of CEL, which has all escapes of JSON."""
    return json.dumps(word, ensure_ascii=False)


def _size(size: int) -> str:
    """Write bytes as Kubernetes does, in whole steps of the slices."""
    return quantity.format_exact(-(-size // STEP) * STEP).removesuffix("B")
