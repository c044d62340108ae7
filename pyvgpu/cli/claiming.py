"""Explain why a pod with ResourceClaims waits, from the cluster's claims and slices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.allocator import device_selector as wishes
from pyvgpu.controller.claims import claim_templates, seen, templates
from pyvgpu.controller.scheduler import cache, pod_request, wait_reasons
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object

FOLDER = templates.FOLDER
NOT_MADE = "FailedResourceClaimCreation"  # event reason: the cluster could not create a claim
_COUNTED = "a ResourceQuota counts devices of a class, not shares of them"


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """The explanation of a pod and its claims."""

    why: wait_reasons.Why | None  # None: none of its claims waits for a device
    lines: tuple[str, ...]  # one for each claim, and one for each part that was not judged

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**(self.why.document() if self.why else {}), "claims": list(self.lines)}

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


def concerns(pod: Object) -> bool:
    """Return whether *pod* waits for a node and may get devices through claims."""
    spec = objects.section(pod, "spec")
    asked = objects.entries(spec, "resourceClaims") or seen.whole_devices(pod)
    over = objects.section(pod, "status").get("phase") in pod_request.OVER
    return bool(asked) and not spec.get("nodeName") and not over


def explain(api: apiserver.ApiServer, pod: Object) -> ClaimExplanation | None:
    """Return why *pod* has no devices; None if none of its claims is for our devices.

    UnavailableError names the missing permission.
    """
    meta = objects.section(pod, "metadata")
    classes = {
        _name(device_class): device_class
        for device_class in _list(api, f"{FOLDER}/deviceclasses", "deviceclasses")
    }
    wants: dict[str, seen.ClaimRequest] = {}
    lines: list[str] = []
    trouble, ours = "", False
    for entry in objects.entries(objects.section(pod, "spec"), "resourceClaims"):
        name = str(entry.get("name"))
        spec, line, waits = _claim(api, pod, entry)
        try:
            found = seen.wanted(spec, classes) if spec else seen.ClaimRequest(())
        except errors.UsageError as exc:
            trouble, ours = f"claim {name}: {exc}", True
            continue
        if spec and not found.parts:
            continue
        ours = True
        lines.append(f"claim {name}: {line}")
        if waits:
            wants[name] = found
            plain = not claim_templates.is_ours(entry.get("resourceClaimTemplateName"))
            lines += [f"claim {name}: not judged here: {text}" for text in found.unjudged if plain]
    if count := seen.whole_devices(pod):
        ours = True
        wants["whole"] = seen.ClaimRequest(
            (
                pod_request.ContainerRequest(
                    datatypes.ContainerKind.APP, datatypes.WHOLE * count, 0
                ),
            )
        )
    if not ours:
        return None
    if not trouble and not any(want.parts for want in wants.values()):
        return ClaimExplanation(None, tuple(lines))
    called, parts = seen.named(wants)
    asked = pod_request.PodRequest(
        key=f"{meta.get('namespace')}/{meta.get('name')}",
        uid=str(meta.get("uid")),
        shape=pod_request.PodShape(parts, _selector(pod)),
        names=called,
        priority=int(objects.section(pod, "spec").get("priority") or 0),
        trouble=trouble,
    )
    return ClaimExplanation(wait_reasons.look(_cache(api), asked, every_device=True), tuple(lines))


def _selector(pod: Object) -> datatypes.Selector:
    """Return the device selector of a pod's annotations, which count if we made its claims."""
    if not any(map(claim_templates.is_ours, templates.named_by(pod))):
        return datatypes.ANY
    try:
        return wishes.read(objects.section(pod, "metadata", "annotations")).selector
    except errors.UsageError:  # edited since the webhook accepted them
        return datatypes.ANY


def _cache(api: apiserver.ApiServer) -> cache.Cache:
    """Return what is free, computed from the nodes' ResourceSlices and from all claims."""
    known = cache.Cache(cache.SchedulerSettings())
    found = seen.slices(_list(api, f"{FOLDER}/resourceslices", "resourceslices"))
    for node, published in seen.nodes(found).items():
        known.see_node(node, published)
    claims = _list(api, f"{FOLDER}/resourceclaims", "resourceclaims of all namespaces")
    for tenant in seen.tenants(found, claims):
        known.see_pod(tenant.key, tenant)
    return known


def _claim(api: apiserver.ApiServer, pod: Object, entry: Object) -> tuple[Object, str, bool]:
    """Return the spec of a claim of *pod*, a line on its state, and whether it waits."""
    namespace = str(objects.section(pod, "metadata").get("namespace"))
    folder = f"{FOLDER}/namespaces/{namespace}"
    name = entry.get("resourceClaimName") or _made(pod, str(entry.get("name")))
    if name:
        claim = _read(api, f"{folder}/resourceclaims/{name}")
        if claim is None:
            return {}, f"{name} is not there", True
        got = seen.allocated(claim)
        line = f"{name} has {', '.join(got)}" if got else f"{name} waits for devices"
        return objects.section(claim, "spec"), line, not got
    template = str(entry.get("resourceClaimTemplateName"))
    found = _read(api, templates.path(namespace, template))
    if found is None:
        return {}, f"its template {template} is not there", True
    why = _why_not_made(api, pod)
    line = f"is not made yet from template {template}{f': {why}' if why else ''}"
    return objects.section(found, "spec", "spec"), line, True


def _made(pod: Object, name: str) -> str:
    """Return the name of the claim that was created for a pod from a template."""
    for entry in objects.entries(objects.section(pod, "status"), "resourceClaimStatuses"):
        if entry.get("name") == name:
            return str(entry.get("resourceClaimName") or "")
    return ""


def _why_not_made(api: apiserver.ApiServer, pod: Object) -> str:
    """Return the last event about a claim that the cluster failed to create."""
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


def _name(thing: Object) -> str:
    return str(objects.section(thing, "metadata").get("name"))
