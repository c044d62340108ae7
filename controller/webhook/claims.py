"""Pods that ask for devices by plain limits, in namespaces where they get them by claims.

Each container's limits become a claim by a template; what the pod's annotations say of its devices
becomes part of that. Nothing is created here: what is returned has to be there before the pod is.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.allocator import facts, spare, wanted
from pyvgpu.controller import objects
from pyvgpu.controller.claims import shapes, templates
from pyvgpu.controller.scheduler import asks
from pyvgpu.controller.webhook import defaults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.webhook import drafts

MOST_NAME = 63  # letters of a claim's name in a pod
PREFIX = "vgpu-"  # of such names; the container's follows
_ASKED_FOR = frozenset(name for pair in asks.RESOURCES for name in pair)
_NOT_KEPT = (  # what is another scheduler's to keep: the annotation, and what does the same
    (names.PLACEMENT_ANNOTATION, "kube-scheduler's own scoring decides"),
    (names.PACKING_ANNOTATION, "kube-scheduler takes the first device that will do"),
)

Specs = dict[str, dict[str, Any]]  # of templates, by their names


@dataclasses.dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of a pod."""

    specs: Specs = dataclasses.field(default_factory=dict)  # that must be there before the pod
    warnings: tuple[str, ...] = ()


def wanted_in(namespace: str, patterns: Sequence[str]) -> bool:
    """Tell whether pods of *namespace* get their devices by claims."""
    return any(fnmatch.fnmatchcase(namespace, it) for it in patterns)


def has_any(pod: Object) -> bool:
    """Tell whether a pod has claims that this has made of its limits."""
    return any(map(shapes.is_ours, templates.named_by(pod)))


def has_share(pod: Object) -> bool:
    """Tell whether one of them is for a share, not for whole devices."""
    return any(it.startswith(shapes.SHARE) for it in templates.named_by(pod))


def rewrite(draft: drafts.Draft, asked: asks.Pod, unit: int) -> Rewritten:
    """Let the pod have claims for what it asks by limits; *unit* is the bytes of one vmemory.

    *asked* is what it asks for, without trouble. UsageError for what no claim can give.
    """
    annotations = objects.section(draft.document, "metadata", "annotations")
    if asked.gang is not None:
        raise errors.UsageError(
            f"{names.GANG_ANNOTATION} {asked.gang.name.partition('/')[2]!r}: in a namespace where "
            "devices are had by claims there are no gangs; valid would be one pod whose "
            f"claim has several devices ({names.DEVICE_COUNT_ANNOTATION}), or a namespace without "
            "--claims"
        )
    wish, choice = _wish_of(annotations), wanted.read(annotations)
    containers = asks.called(asked, asks.pod_of(asked.shape, unit)).containers
    specs: Specs = {}
    held: dict[str, str] = {}  # the claim of each container, as the pod calls it
    for claim in shapes.claims_of(containers):
        _check_reach(claim, wish)
        shape = shapes.Shape(
            claim.need,
            choice.selector,
            choice.nearness or facts.Nearness.PREFERRED,
            wish,
        )
        spec = shapes.spec_of(shape)
        template = shapes.name_of(spec, claim.need)
        specs[template] = spec
        name = _free_name(draft.document, claim.containers[0])
        entry = {"name": name, "resourceClaimTemplateName": template}
        draft.append(entry, "spec", "resourceClaims")
        held.update(dict.fromkeys(claim.containers, name))
    for part, place, container in defaults.containers(draft.document):
        _take_limits(draft, (part, place), container)
        if mine := held.get(str(container.get("name"))):
            draft.append({"name": mine}, "spec", part, place, "resources", "claims")
    warnings = tuple(
        f"{name} {annotations[name]}: says nothing to claims, {instead}"
        for name, instead in _NOT_KEPT
        if name in annotations
    )
    return Rewritten(specs, warnings)


def _wish_of(annotations: Object) -> spare.Wish | None:
    wish, priority = spare.read(annotations), spare.read_priority(annotations)
    if priority is None:
        return wish
    return dataclasses.replace(wish or spare.Wish(), priority=priority)


def _check_reach(claim: shapes.Claim, wish: spare.Wish | None) -> None:
    if wish is None or wish.ceiling is None or claim.need.whole:
        return
    if wish.ceiling < claim.need.vcore:
        raise errors.UsageError(
            f"container {claim.containers[0]}: {names.VCORE_LIMIT_ANNOTATION} '{wish.ceiling}': "
            f"must be from the container's own {claim.need.vcore} vcore to {facts.WHOLE}, such as "
            f"{facts.WHOLE}"
        )


def _free_name(pod: Object, container: str) -> str:
    """Return a name that no claim of the pod has yet."""
    taken = {
        it.get("name") for it in objects.entries(objects.section(pod, "spec"), "resourceClaims")
    }
    name, number = f"{PREFIX}{container}"[:MOST_NAME].rstrip("-"), 1
    while name in taken:
        number += 1
        end = f"-{number}"
        name = f"{PREFIX}{container}"[: MOST_NAME - len(end)].rstrip("-") + end
    return name


def _take_limits(draft: drafts.Draft, where: tuple[str, int], container: Object) -> None:
    resources = objects.section(container, "resources")
    for section in ("limits", "requests"):
        for name in sorted(_ASKED_FOR & set(objects.section(resources, section))):
            draft.remove("spec", *where, "resources", section, name)
