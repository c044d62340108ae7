"""Explain why a pod with ResourceClaims waits, from the cluster's claims and slices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from pyvgpu import errors
from pyvgpu.allocator import datatypes, device_selector, mig_placement
from pyvgpu.controller.claims import claim_templates, dra_objects, templates
from pyvgpu.controller.scheduler import cache, pod_request, wait_reasons
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.kube.objects import Object

FOLDER = templates.FOLDER
NOT_MADE = "FailedResourceClaimCreation"  # event reason: the cluster could not create a claim
_COUNTED = "a ResourceQuota counts devices of a class, not shares of them"


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """The explanation of a pod and its claims."""

    why: wait_reasons.Why | None  # None: none of its claims waits for a device
    lines: tuple[str, ...]  # one for each claim, and one for each part that was not evaluated

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**(self.why.document() if self.why else {}), "claims": list(self.lines)}

    def line(self) -> str:
        """Return it as one line, without the devices of every node."""
        return "; ".join([*self.lines, *([self.why.event()] if self.why else ())])

    def text(self, pod: str) -> str:
        """Return it as text."""
        head = self.why.text() if self.why else f"{pod} waits for none of its claims"
        found = [head, *(f"  {line}" for line in self.lines)]
        if self.why and self.why.fitting:
            found.append(
                "  there is room: kube-scheduler has not retried since, or something else "
                "rules that node out, such as its other requests"
            )
        rows = self.why.rows() if self.why else []
        return "\n".join([*found, *([wait_reasons.table(rows)] if rows else ())])


class ClusterClaims(Protocol):
    """The objects on which an explanation depends."""

    def classes(self) -> Mapping[str, Object]:
        """Return the DeviceClasses by name."""

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim; None if there is none."""

    def template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate; None if there is none."""

    def why_not_made(self, pod: Object) -> str:
        """Return why the cluster fails to create a claim of *pod*; empty if it does not say."""

    def devices(self) -> cache.Cache:
        """Return what is free of the devices of all nodes."""


class ServerClaims:
    """ClusterClaims from requests to the API server; UnavailableError names what it forbids."""

    def __init__(self, api: apiserver.ApiServer) -> None:
        self._api = api

    def classes(self) -> Mapping[str, Object]:
        """Return the DeviceClasses by name."""
        return by_name(_list(self._api, f"{FOLDER}/deviceclasses", "deviceclasses"))

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim; None if there is none."""
        return _read(self._api, f"{FOLDER}/namespaces/{namespace}/resourceclaims/{name}")

    def template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate; None if there is none."""
        return _read(self._api, templates.path(namespace, name))

    def why_not_made(self, pod: Object) -> str:
        """Return why the cluster fails to create a claim of *pod*; empty if it does not say."""
        return why_not_made(self._api, pod)

    def devices(self) -> cache.Cache:
        """Return what is free of the devices of all nodes."""
        return free_devices(
            _list(self._api, f"{FOLDER}/resourceslices", "resourceslices"),
            _list(self._api, f"{FOLDER}/resourceclaims", "resourceclaims of all namespaces"),
        )


def concerns(pod: Object) -> bool:
    """Return whether *pod* waits for a node and may get devices through claims."""
    spec = objects.section(pod, "spec")
    asked = objects.entries(spec, "resourceClaims") or dra_objects.whole_devices(pod)
    over = objects.section(pod, "status").get("phase") in pod_request.OVER
    return bool(asked) and not spec.get("nodeName") and not over


def explain(known: ClusterClaims, pod: Object) -> ClaimExplanation | None:
    """Return why *pod* has no devices; None if none of its claims is for our devices."""
    meta = objects.section(pod, "metadata")
    classes = known.classes()
    wants: dict[str, dra_objects.ClaimRequest] = {}
    lines: list[str] = []
    trouble, ours = "", False
    for entry in objects.entries(objects.section(pod, "spec"), "resourceClaims"):
        name = str(entry.get("name"))
        spec, line, waits = _claim(known, pod, entry)
        try:
            found = dra_objects.wanted(spec, classes) if spec else dra_objects.ClaimRequest(())
        except errors.UsageError as exc:
            trouble, ours = f"claim {name}: {exc}", True
            continue
        if spec and not (found.parts or found.partitions):
            continue
        ours = True
        lines.append(f"claim {name}: {line}")
        if waits:
            wants[name] = found
            plain = not claim_templates.is_ours(entry.get("resourceClaimTemplateName"))
            lines += [
                f"claim {name}: not evaluated here: {text}" for text in found.unevaluated if plain
            ]
    if count := dra_objects.whole_devices(pod):
        ours = True
        wants["whole"] = dra_objects.ClaimRequest(
            (
                pod_request.ContainerRequest(
                    datatypes.ContainerKind.APP, datatypes.WHOLE * count, 0
                ),
            )
        )
    if not ours:
        return None
    profiles = {each.profile for want in wants.values() for each in want.partitions}
    evaluated, selector = {name: want.parts for name, want in wants.items()}, _selector(pod)
    if not trouble and not any(evaluated.values()):
        if not profiles:
            return ClaimExplanation(None, tuple(lines))
        lines += [_unevaluated(profile) for profile in sorted(profiles)[1:]]
        selector = dataclasses.replace(selector, mig=min(profiles))
        evaluated = {
            name: tuple(each.part for each in want.partitions if each.profile == selector.mig)
            for name, want in wants.items()
        }
    elif not trouble:
        lines += map(_unevaluated, sorted(profiles))
    called, parts = dra_objects.named(evaluated)
    asked = pod_request.PodRequest(
        key=f"{meta.get('namespace')}/{meta.get('name')}",
        uid=str(meta.get("uid")),
        shape=pod_request.PodShape(parts, selector),
        names=called,
        priority=int(objects.section(pod, "spec").get("priority") or 0),
        trouble=trouble,
    )
    return ClaimExplanation(
        wait_reasons.find(known.devices(), asked, every_device=True), tuple(lines)
    )


def _unevaluated(profile: str) -> str:
    named = "any" if profile == mig_placement.SMALLEST else profile
    return f"not evaluated here: MIG partitions (profile: {named}), beside its other requests"


def _selector(pod: Object) -> datatypes.Selector:
    """Return the device selector of a pod's annotations, which count if we made its claims."""
    if not any(map(claim_templates.is_ours, templates.named_by(pod))):
        return datatypes.ANY
    try:
        return device_selector.read(objects.section(pod, "metadata", "annotations")).selector
    except errors.UsageError:  # edited since the webhook accepted them
        return datatypes.ANY


def free_devices(slices: Iterable[Object], claims: Iterable[Object]) -> cache.Cache:
    """Return what is free, computed from the nodes' ResourceSlices and from all claims."""
    known = cache.Cache(cache.SchedulerSettings())
    found = dra_objects.slices(slices)
    for node, published in dra_objects.nodes(found).items():
        known.see_node(node, published)
    for tenant in dra_objects.tenants(found, claims):
        known.see_pod(tenant.key, tenant)
    return known


def claim_name(pod: Object, entry: Object) -> str:
    """Return the claim of an *entry* of a pod's claims; empty if it is not made yet."""
    if name := entry.get("resourceClaimName"):
        return str(name)
    for status in objects.entries(objects.section(pod, "status"), "resourceClaimStatuses"):
        if status.get("name") == entry.get("name"):
            return str(status.get("resourceClaimName") or "")
    return ""


def _claim(known: ClusterClaims, pod: Object, entry: Object) -> tuple[Object, str, bool]:
    """Return the spec of a claim of *pod*, a line on its state, and whether it waits."""
    namespace = str(objects.section(pod, "metadata").get("namespace"))
    if name := claim_name(pod, entry):
        claim = known.claim(namespace, name)
        if claim is None:
            return {}, f"{name} is not there", True
        got = dra_objects.allocated(claim)
        line = f"{name} has {', '.join(got)}" if got else f"{name} waits for devices"
        return objects.section(claim, "spec"), line, not got
    template = str(entry.get("resourceClaimTemplateName"))
    found = known.template(namespace, template)
    if found is None:
        return {}, f"its template {template} is not there", True
    why = known.why_not_made(pod)
    line = f"is not made yet from template {template}{f': {why}' if why else ''}"
    return objects.section(found, "spec", "spec"), line, True


def why_not_made(api: apiserver.ApiServer, pod: Object) -> str:
    """Return the last event about a claim of *pod* that the cluster failed to create, or ''."""
    meta = objects.section(pod, "metadata")
    query = {"fieldSelector": f"involvedObject.uid={meta.get('uid')},reason={NOT_MADE}"}
    path = f"/api/v1/namespaces/{meta.get('namespace')}/events"
    try:
        found = api.call("GET", path, query).get("items") or []
    except apiserver.ServerError:
        return ""  # without permission to read events the rest is still shown
    if not found:
        return ""
    last = max(found, key=lambda event: str(event.get("lastTimestamp") or ""))
    text = str(last.get("message"))
    return f"{text} ({_COUNTED})" if "exceeded quota" in text else text


def by_name(listed: Iterable[Object]) -> dict[str, Object]:
    """Return cluster-wide objects by name."""
    return {str(objects.section(thing, "metadata").get("name")): thing for thing in listed}


def _list(api: apiserver.ApiServer, path: str, what: str) -> list[Object]:
    try:
        return api.items(path, {})[0]
    except apiserver.ServerError as exc:
        if exc.status == 403:
            raise errors.UnavailableError(
                f"you may not list {what}: this permission is needed to tell which devices "
                f"are in use"
            ) from exc
        if exc.status == 404:
            raise errors.UnavailableError(
                f"{path}: this cluster has no resource.k8s.io/v1; claims need Kubernetes 1.34 or "
                "later"
            ) from exc
        raise


def _read(api: apiserver.ApiServer, path: str) -> Object | None:
    try:
        return api.call("GET", path)
    except apiserver.ServerError as exc:
        if exc.status == 404:
            return None
        raise
