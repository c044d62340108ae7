"""Convert plain resource limits to claims, in namespaces whose pods get devices through DRA.

Each container's limits become a claim by a template, which includes the selectors of the pod's
annotations. Nothing is created here: the caller creates the returned templates before the pod.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.allocator import datatypes, device_selector, elastic
from pyvgpu.controller.claims import claim_templates, templates
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.webhook import defaults
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.webhook import drafts
    from pyvgpu.kube.objects import Object

MOST_NAME = 63  # characters of a claim's name in a pod
PREFIX = "vgpu-"  # of such names; the container's name follows
_ASKED_FOR = frozenset(name for pair in pod_request.RESOURCES for name in pair)
# Annotations that kube-scheduler ignores, and what applies instead.
_NOT_KEPT: tuple[tuple[str, str], ...] = (
    (names.PLACEMENT_ANNOTATION, "kube-scheduler's own scoring decides"),
    (names.PACKING_ANNOTATION, "kube-scheduler takes the first device that fits"),
)
_ALONE = "a claim of a MIG partition has all time of its instance"
# And those that divide time.
_NOT_OF_INSTANCES: tuple[tuple[str, str], ...] = (
    (names.VCORE_POLICY_ANNOTATION, _ALONE),
    (names.VCORE_LIMIT_ANNOTATION, _ALONE),
    (names.PRIORITY_ANNOTATION, _ALONE),
)

Specs = dict[str, dict[str, Any]]  # of templates, by name


@dataclasses.dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a conversion."""

    specs: Specs = dataclasses.field(default_factory=dict)  # must exist before the pod
    warnings: tuple[str, ...] = ()


def wanted_in(namespace: str, patterns: Sequence[str]) -> bool:
    """Return whether pods of *namespace* get their devices through claims."""
    return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in patterns)


def has_any(pod: Object) -> bool:
    """Return whether a pod has claims that were converted from its limits."""
    return any(map(claim_templates.is_ours, templates.named_by(pod)))


def has_share(pod: Object) -> bool:
    """Return whether one of those claims is for a share, not for whole devices."""
    return any(template.startswith(claim_templates.SHARE) for template in templates.named_by(pod))


def rewrite(draft: drafts.Draft, asked: pod_request.PodRequest, unit: int) -> Rewritten:
    """Replace the pod's device limits by claims; *unit* is the bytes of one vmemory.

    *asked* is its valid request. UsageError for a request that claims cannot express.
    """
    annotations = objects.section(draft.document, "metadata", "annotations")
    if asked.gang is not None:
        raise errors.UsageError(
            f"{names.GANG_ANNOTATION} {asked.gang.name.partition('/')[2]!r}: gangs are not "
            f"supported in a namespace that allocates devices through claims; valid would be "
            f"one pod whose "
            f"claim has several devices ({names.DEVICE_COUNT_ANNOTATION}), or a namespace without "
            "--claims"
        )
    time_sharing, choice = _time_sharing_of(annotations), device_selector.read(annotations)
    ignored = _NOT_KEPT
    if choice.selector.mig:
        time_sharing, ignored = None, (*_NOT_KEPT, *_NOT_OF_INSTANCES)
    if choice.selector.mps:
        raise errors.UsageError(
            f"{names.ISOLATION_ANNOTATION} mps: claims give no devices that MPS divides; valid "
            "would be a namespace without --claims"
        )
    containers = pod_request.called(asked, pod_request.pod_of(asked.shape, unit)).containers
    specs: Specs = {}
    held: dict[str, str] = {}  # the name of each container's claim in the pod
    for claim in claim_templates.claims_of(containers):
        _check_reach(claim, time_sharing)
        shape = claim_templates.ClaimShape(
            claim.need,
            choice.selector,
            choice.nearness or datatypes.Nearness.PREFERRED,
            time_sharing,
        )
        spec = claim_templates.spec_of(shape)
        template = claim_templates.name_of(spec, claim.need)
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
        f"{name} {annotations[name]}: has no effect on claims, {instead}"
        for name, instead in ignored
        if name in annotations
    )
    return Rewritten(specs, warnings)


def _time_sharing_of(annotations: Object) -> elastic.TimeSharing | None:
    time_sharing, priority = elastic.read(annotations), elastic.read_priority(annotations)
    if priority is None:
        return time_sharing
    return dataclasses.replace(time_sharing or elastic.TimeSharing(), priority=priority)


def _check_reach(
    claim: claim_templates.PodClaim, time_sharing: elastic.TimeSharing | None
) -> None:
    if time_sharing is None or time_sharing.ceiling is None or claim.need.whole:
        return
    if time_sharing.ceiling < claim.need.vcore:
        raise errors.UsageError(
            f"container {claim.containers[0]}: {names.VCORE_LIMIT_ANNOTATION} "
            f"'{time_sharing.ceiling}': must be from the container's own "
            f"{claim.need.vcore} vcore to {datatypes.WHOLE}, such as {datatypes.WHOLE}"
        )


def _free_name(pod: Object, container: str) -> str:
    """Return a claim name that is free in the pod."""
    taken = {
        entry.get("name")
        for entry in objects.entries(objects.section(pod, "spec"), "resourceClaims")
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
