"""Admission of pods that request devices: defaults, conversions, claims and refusals.

Which requests are valid is decided by the scheduler's parser of pods, not here.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import posixpath
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import amounts, elastic, isolation, mig_placement, suspensions
from pyvgpu.controller.scheduler import other_groups, pod_request
from pyvgpu.controller.webhook import (
    claim_conversion,
    confines,
    conversions,
    defaults,
    drafts,
    review,
)
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.kube.objects import Object

    Devices = Callable[[], Sequence[datatypes.NodeDevice]]  # returns one device of each known kind
    # Creates claim templates in a namespace; True: dry run. UnavailableError if they cannot be
    # created now, PermissionDeniedError if never.
    Ensure = Callable[[str, claim_conversion.Specs, bool], None]

log = logging.getLogger(__name__)

# Annotations that record a component's decisions, which users may not write.
STATE_ANNOTATIONS = (
    names.DEVICES_ANNOTATION,
    names.STOP_ANNOTATION,
    names.SWAPPED_ANNOTATION,
    names.GAIA_ASSIGNED_ANNOTATION,
)
STATE_PREFIX = names.GAIA_PREDICATE  # of further ones

_KNOWN = frozenset(
    value for name, value in vars(names).items() if name.endswith(("_ANNOTATION", "_LABEL"))
)
_BARE = sorted(key.partition("/")[2] for key in _KNOWN if key.startswith(f"{names.DOMAIN}/"))

_TIME_ANNOTATIONS = (
    names.VCORE_POLICY_ANNOTATION,
    names.VCORE_LIMIT_ANNOTATION,
    names.PRIORITY_ANNOTATION,
)
_CREATED = ("pods", "CREATE")
_DEBUGGED = ("pods/ephemeralcontainers", "UPDATE")
_EPHEMERAL = ("ephemeralContainers",)
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- a mount point


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRules:
    """The webhook's settings for pods with devices."""

    unit: int = amounts.UNIT_BYTES  # bytes of one vmemory
    fallback: int = 0  # bytes for a share without vmemory while no device is known; 0: refused
    schedulers: tuple[str, ...] = ()  # allowed ones; pods that name none get the first
    claims: tuple[str, ...] = ()  # patterns of namespaces whose pods get devices through claims
    words: frozenset[conversions.Words] = frozenset()
    confines: confines.Confines = dataclasses.field(default_factory=confines.Confines)


def mutation(rules: DeviceRules, devices: Devices, ensure: Ensure) -> review.Mutation:
    """Return the mutation of new pods.

    For a pod that gets claims, it calls *ensure* before it answers.
    """

    def mutate(request: review.AdmissionRequest) -> review.Review:
        if (request.resource, request.operation) != _CREATED:
            return review.Review()
        draft = drafts.Draft(request.thing)
        forged = strip_state(draft)
        warnings = (_took(forged),) if forged else ()
        try:
            known = devices()
            _complete(draft, rules, defaults.DefaultMemory(rules.unit, known, rules.fallback))
            done = _claim(draft, request, rules, known)
            if done.specs:
                ensure(request.namespace, done.specs, request.dry_run)
        except (errors.UsageError, errors.PermissionDeniedError) as exc:
            return review.Review(refusal=str(exc))
        except errors.UnavailableError as exc:
            log.warning("refused a pod in namespace %s for now: %s", request.namespace, exc)
            return review.Review(refusal=str(exc), code=review.FAILED, failed=True)
        return review.Review(tuple(draft.operations), (*warnings, *done.warnings))

    return review.closed(mutate)


def validation(rules: DeviceRules, devices: Devices) -> review.Mutation:
    """Return the validation of new pods, which also sees the changes of other webhooks."""

    def evaluate(request: review.AdmissionRequest) -> review.Review:
        if (request.resource, request.operation) != _CREATED:
            return review.Review()
        pod = dict(request.thing)
        asked = pod_request.read(pod, unit=rules.unit)
        if asked is None and not claim_conversion.has_any(pod):
            return review.Review()
        # Static pods, which a node's administrator defines by files, are not refused.
        why = asked.trouble if asked else ""
        if not why and not request.by_a_node:
            why = _why_not(request, asked, rules) or (
                _why_no_instance(asked, rules, devices()) if asked else ""
            )
        if why:
            return review.Review(refusal=why)
        asked_for = (
            (*_too_large(asked, rules, devices()), *_without_effect(pod, asked)) if asked else ()
        )
        return review.Review(warnings=(*_misspelt(pod), *asked_for))

    return review.closed(evaluate)


def ephemeral(rules: DeviceRules) -> review.Mutation:
    """Return the validation of ephemeral containers added to a pod with devices."""

    def evaluate(request: review.AdmissionRequest) -> review.Review:
        if (request.resource, request.operation) != _DEBUGGED:
            return review.Review()
        asked = pod_request.read(request.thing, unit=rules.unit)
        if asked is None and not claim_conversion.has_any(request.thing):
            return review.Review()
        pod = _with_news_alone(request)
        allowed = rules.confines
        why = confines.why_not_privileged(pod, request.namespace, allowed, _EPHEMERAL)
        if not why and _has_share(request.thing, asked, rules):
            why = confines.why_no_host_path(pod, allowed, _EPHEMERAL)
        return review.Review(refusal=why)

    return review.closed(evaluate)


def strip_state(draft: drafts.Draft) -> tuple[str, ...]:
    """Remove the annotations that only components may write; return the removed keys.

    Later changes are refused by the API server through the ValidatingAdmissionPolicy in the chart,
    which lists the same names.
    """
    noted = objects.section(draft.document, "metadata", "annotations")
    forged = tuple(
        key for key in noted if key in STATE_ANNOTATIONS or str(key).startswith(STATE_PREFIX)
    )
    for key in forged:
        draft.remove("metadata", "annotations", key)
    return forged


def _complete(draft: drafts.Draft, rules: DeviceRules, memory: defaults.DefaultMemory) -> None:
    conversions.convert_mebibytes(draft, rules.unit)
    if rules.words:
        conversions.convert(draft, rules.words, memory)
    if pod_request.read(draft.document) is not None:
        defaults.fill(draft, memory)


def _claim(
    draft: drafts.Draft,
    request: review.AdmissionRequest,
    rules: DeviceRules,
    known: Sequence[datatypes.NodeDevice],
) -> claim_conversion.Rewritten:
    """Give the pod claims if its namespace uses them, else a scheduler that knows devices.

    A pod that validation will refuse is left unchanged, so that its user sees the reason.
    """
    asked = pod_request.read(draft.document, unit=rules.unit)
    if asked is None:
        return claim_conversion.Rewritten()
    if not claim_conversion.wanted_in(request.namespace, rules.claims) or request.by_a_node:
        defaults.schedule(draft, rules.schedulers)
        return claim_conversion.Rewritten()
    if asked.trouble or _why_confined(draft.document, request.namespace, asked, rules):
        return claim_conversion.Rewritten()
    if why := _why_no_instance(asked, rules, known):
        raise errors.UsageError(why)
    return claim_conversion.rewrite(draft, asked, rules.unit)


def _why_not(
    request: review.AdmissionRequest, asked: pod_request.PodRequest | None, rules: DeviceRules
) -> str:
    pod = request.thing
    why = _why_confined(pod, request.namespace, asked, rules)
    if why or not asked:
        return why
    return (
        _why_not_by(objects.section(pod, "spec"), rules.schedulers)
        or (_why_not_in_group(pod) if rules.schedulers else "")
        or why_invalid(pod, asked, rules)
    )


def why_invalid(pod: Object, asked: pod_request.PodRequest, rules: DeviceRules) -> str:
    """Return why *pod* is refused in any cluster although its devices exist; empty if it is not.

    *asked* is its request without an error.
    """
    return (
        _why_not_shared(objects.section(pod, "metadata", "annotations"), asked, rules)
        or _why_no_slice(pod, asked)
        or (_why_no_shared_memory(pod, asked) if asked.shape.selector.mps else "")
    )


def _why_confined(
    pod: Object, namespace: str, asked: pod_request.PodRequest | None, rules: DeviceRules
) -> str:
    allowed = rules.confines
    why = confines.why_no_node(pod, namespace, allowed) or confines.why_not_privileged(
        pod, namespace, allowed
    )
    if not why and _has_share(pod, asked, rules):
        why = confines.why_no_host_pid(pod, namespace, allowed) or confines.why_no_host_path(
            pod, allowed
        )
    return why


def _why_not_by(spec: Object, schedulers: tuple[str, ...]) -> str:
    name = spec.get("schedulerName", defaults.DEFAULT_SCHEDULER)
    if not schedulers or name in schedulers:
        return ""
    return (
        f"spec.schedulerName {name}: a pod that asks for devices must be placed by a "
        f"scheduler that handles devices; valid would be {' or '.join(schedulers)}, or to "
        f"leave it out"
    )


def _why_not_in_group(pod: Object) -> str:
    """Return the error if *pod* is in a group that another system would schedule as a whole.

    Our scheduler would place such a pod alone, which its user would notice only by a deadlock. Our
    own gangs are annotations: docs/placement.md. A pod group of Kueue is none of these: Kueue
    admits its quota as a whole, and leaves the placement to us.
    """
    metadata = objects.section(pod, "metadata")
    if objects.section(metadata, "annotations").get(names.GANG_ANNOTATION):
        return ""  # our own gang, whatever other systems read
    for place, key in other_groups.MARKS:
        if group := objects.section(metadata, place).get(key):
            return _unknown_group(f"metadata.{place} {key}: {group}", str(group))
    spec = objects.section(pod, "spec")
    for field, key in other_groups.FIELDS:
        if field in spec and spec[field] is not None:
            group = str(objects.section(spec, field).get(key) or "train")
            return _unknown_group(f"spec.{field}", group)
    return ""


def _unknown_group(what: str, group: str) -> str:
    return (
        f"{what}: the scheduler of pods with devices does not know this group, and would place "
        f"the pod alone; valid would be the annotations {names.GANG_ANNOTATION}: {group} and "
        f'{names.GANG_SIZE_ANNOTATION}: "4", with the number of its pods'
    )


def _why_not_shared(annotations: Object, asked: pod_request.PodRequest, rules: DeviceRules) -> str:
    """Return the error that the agent could otherwise only report in an event, at runtime."""
    try:
        time_sharing = elastic.read(annotations)
        isolation.check_time_sharing(
            isolation.read(annotations), time_sharing, elastic.read_priority(annotations)
        )
        suspensions.requested(annotations)
    except errors.UsageError as exc:
        return str(exc)
    ceiling = time_sharing.ceiling if time_sharing is not None else None
    if ceiling is None or names.VCORE_LIMIT_ANNOTATION not in annotations:
        return ""
    for name, need in _needs(asked, rules):
        if not need.whole and ceiling < need.vcore:
            return (
                f"{names.VCORE_LIMIT_ANNOTATION} '{ceiling}': must be from the {need.vcore} vcore "
                f"of container {name} to {quantity.WHOLE_DEVICE}, such as {quantity.WHOLE_DEVICE}"
            )
    return ""


def _misspelt(pod: Object) -> tuple[str, ...]:
    """Return a warning for each annotation that resembles one of ours, and is none."""
    noted = objects.section(pod, "metadata", "annotations")
    begin = f"{names.DOMAIN}/"
    found = []
    for key in noted:
        if key.startswith(begin) and key not in _KNOWN:
            close = difflib.get_close_matches(key.removeprefix(begin), _BARE, 1, 0.8)
            found += [
                f"annotation {key} has no effect; did you mean {begin}{name}?" for name in close
            ]
    return tuple(found)


def _why_no_slice(pod: Object, asked: pod_request.PodRequest) -> str:
    """Return the error of a container with a share and a time slice, which would never start."""
    resource = names.GPU_SHARED_RESOURCE
    for container in _containers(pod, asked):
        limits, requests = defaults.amounts(container)
        if str(limits.get(resource, requests.get(resource, "0"))) != "0":
            return (
                f"container {container.get('name')}: asks for {resource} and for "
                f"{names.VCORE_RESOURCE}: it can have one of them; valid would be {resource} 1 "
                "alone"
            )
    return ""


def _why_no_shared_memory(pod: Object, asked: pod_request.PodRequest) -> str:
    """Return the error of a container under MPS with a volume in place of the daemon's memory."""
    for container in _containers(pod, asked):
        mounts = objects.entries(container, "volumeMounts")
        if any(
            posixpath.normpath(str(mount.get("mountPath"))) == _SHARED_MEMORY for mount in mounts
        ):
            return (
                f"container {container.get('name')}: has a volume at {_SHARED_MEMORY}, which "
                f"{names.ISOLATION_ANNOTATION} mps replaces by that of the MPS daemon; valid "
                "would be to leave the volume out"
            )
    return ""


def _containers(pod: Object, asked: pod_request.PodRequest) -> Iterator[Object]:
    """Yield the containers that request devices."""
    for part in ("initContainers", "containers"):
        for container in objects.entries(objects.section(pod, "spec"), part):
            if container.get("name") in asked.names:
                yield container


def _needs(
    asked: pod_request.PodRequest, rules: DeviceRules
) -> tuple[tuple[str, datatypes.ContainerNeed], ...]:
    found = pod_request.pod_of(asked.shape, rules.unit)
    needs = (container.need for container in found.containers)
    return tuple(zip(asked.names, needs, strict=True))


def _has_share(pod: Object, asked: pod_request.PodRequest | None, rules: DeviceRules) -> bool:
    if claim_conversion.has_share(pod):
        return True
    if asked is None or asked.trouble:
        return False
    return any(not need.whole for _, need in _needs(asked, rules))


def _why_no_instance(
    asked: pod_request.PodRequest, rules: DeviceRules, devices: Sequence[datatypes.NodeDevice]
) -> str:
    """Return why no known GPU can give the MIG instances of a pod, with the valid profiles."""
    wanted = asked.shape.selector.mig
    kinds = tuple(mig_placement.profiles_of(devices)) if wanted else ()
    for name, need in _needs(asked, rules) if kinds else ():
        wrong = [mig_placement.mismatch(profiles, wanted, need) for profiles in kinds]
        if all(wrong):
            return f"container {name}: no GPU serves it: one {'; one '.join(wrong)}"
    return ""


def _too_large(
    asked: pod_request.PodRequest, rules: DeviceRules, devices: Sequence[datatypes.NodeDevice]
) -> tuple[str, ...]:
    """Warn of requests larger than any known device; a new node may bring a larger one."""
    if not devices:
        return ()
    allowed = defaults.allowed(devices, asked.shape.selector)
    if not allowed:
        return ("the pod waits: its annotations allow none of the devices that are known",)
    most = max(device.memory_bytes for device in allowed)
    return tuple(
        f"container {name} waits for a device with {quantity.format_size(need.vmemory)}: the "
        f"largest that is known and that the pod allows has {quantity.format_size(most)}"
        for name, need in _needs(asked, rules)
        if not need.whole and need.vmemory > most
    )


def _without_effect(pod: Object, asked: pod_request.PodRequest) -> tuple[str, ...]:
    """Warn of options that divide time: a MIG instance has all of its own."""
    noted = objects.section(pod, "metadata", "annotations")
    return tuple(
        f"{name} {noted[name]}: has no effect, a MIG instance has all of its time"
        for name in _TIME_ANNOTATIONS
        if name in noted and asked.shape.selector.mig
    )


def _with_news_alone(request: review.AdmissionRequest) -> Object:
    """Return the pod with only the ephemeral containers that this request adds."""
    spec = objects.section(request.thing, "spec")
    former = objects.entries(objects.section(request.former, "spec"), "ephemeralContainers")
    known = {one.get("name") for one in former}
    news = [
        one for one in objects.entries(spec, "ephemeralContainers") if one.get("name") not in known
    ]
    return {**request.thing, "spec": {**spec, "ephemeralContainers": news}}


def _took(forged: tuple[str, ...]) -> str:
    return f"removed {', '.join(forged)}: only components of the cluster may write it"
