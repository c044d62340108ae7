"""Pods that wait for ResourceClaims of our devices, with the reasons, for the status page.

Watches pending pods, and the objects of DRA on which a reason depends. Of claims, of which there
may be a hundred thousand, it stores the fields that a reason needs, and equal specs once.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.controller.claims import claim_explanation, dra_objects
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.scheduler.shell import cache_watch
from pyvgpu.kube import informer, objects

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyvgpu.controller.scheduler import cache
    from pyvgpu.kube import apiserver
    from pyvgpu.kube.objects import Object

FOLDER = claim_explanation.FOLDER
PENDING = {"fieldSelector": "spec.nodeName="}
ROOM = "there is room: kube-scheduler has not retried since, or something else rules that node out"


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimPod:
    """A pending pod that gets devices through claims."""

    key: str  # namespace/name
    priority: int
    created: float  # seconds, by the API server's clock
    gates: tuple[str, ...]  # its schedulingGates
    thing: Object  # the fields that an explanation needs


def read_pod(pod: Object) -> ClaimPod | None:
    """Return the record of *pod*; None if it has no claims, or does not wait for a node."""
    meta, spec = objects.section(pod, "metadata"), objects.section(pod, "spec")
    try:
        if meta.get("deletionTimestamp") or not claim_explanation.concerns(pod):
            return None
    except errors.UsageError:  # a number of whole devices that no node could have
        return None
    noted = objects.section(meta, "annotations")
    kept = {name: text for name, text in noted.items() if name.startswith(names.DOMAIN)}
    fields = ("namespace", "name", "uid")
    thing = {
        "metadata": {**{field: meta.get(field) for field in fields}, "annotations": kept},
        "spec": {
            "priority": spec.get("priority"),
            "resourceClaims": objects.entries(spec, "resourceClaims"),
            "containers": [
                {"resources": {"limits": {names.DEVICE_RESOURCE: limits[names.DEVICE_RESOURCE]}}}
                for entry in objects.entries(spec, "containers")
                if names.DEVICE_RESOURCE
                in (limits := objects.section(entry, "resources", "limits"))
            ],
        },
        "status": {
            "resourceClaimStatuses": objects.entries(
                objects.section(pod, "status"), "resourceClaimStatuses"
            )
        },
    }
    return ClaimPod(
        informer.key_of(pod),
        int(spec.get("priority") or 0),
        pod_request.seconds(meta.get("creationTimestamp")),
        tuple(str(gate.get("name")) for gate in objects.entries(spec, "schedulingGates")),
        thing,
    )


def read_claim(claim: Object) -> Object:
    """Return the fields of a claim that an explanation needs."""
    meta, status = objects.section(claim, "metadata"), objects.section(claim, "status")
    results = objects.entries(objects.section(status, "allocation", "devices"), "results")
    fields = ("driver", "pool", "device", "adminAccess", "consumedCapacity")
    users = objects.entries(status, "reservedFor")[:1]
    return {
        "metadata": {field: meta.get(field) for field in ("namespace", "name", "uid")},
        "spec": _shared(json.dumps(objects.section(claim, "spec"), sort_keys=True)),
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {field: result[field] for field in fields if field in result}
                        for result in results
                        if result.get("driver") == names.DRA_DRIVER
                    ]
                }
            },
            "reservedFor": [{"name": user.get("name"), "uid": user.get("uid")} for user in users],
        },
    }


class ClaimPods:
    """Watches pods, claims, templates, classes and slices; a ClusterClaims."""

    def __init__(
        self, api: apiserver.ApiServer, counting: informer.Counting | None = None
    ) -> None:
        self._api = api

        def watch(path: str, read: Callable[[Object], Any]) -> informer.Informer[Any]:
            return informer.Informer(api, f"{FOLDER}/{path}", {}, read, _nothing, counting)

        self._pods = informer.Informer(
            api, cache_watch.PODS, PENDING, read_pod, _nothing, counting
        )
        self._claims = watch("resourceclaims", read_claim)
        self._templates = watch("resourceclaimtemplates", _spec_of)
        self._classes = watch("deviceclasses", _spec_of)
        self._slices = watch("resourceslices", _spec_of)
        self._watches: tuple[informer.Informer[Any], ...] = (
            *(self._pods, self._claims, self._templates, self._classes, self._slices),
        )

    @property
    def parts(self) -> tuple[Callable[[threading.Event], None], ...]:
        """The functions to run until an event is set, each in a thread."""
        return tuple(watch.run for watch in self._watches)

    @property
    def synced(self) -> bool:
        """Whether everything was listed once."""
        return all(watch.synced.is_set() for watch in self._watches)

    def waiting(self) -> list[ClaimPod]:
        """Return the pods that wait for claims of our devices, in no order."""
        ours = self._our_classes()
        return [
            pod for pod in self._pods.values() if pod is not None and self._waits(pod.thing, ours)
        ]

    def made(self, pod: ClaimPod) -> tuple[str, ...]:
        """Return the names of the claims of *pod* that exist; other claims need a new reason."""
        namespace = pod.key.partition("/")[0]
        called = (
            claim_explanation.claim_name(pod.thing, entry)
            for entry in objects.entries(objects.section(pod.thing, "spec"), "resourceClaims")
        )
        return tuple(name for name in called if name and self.claim(namespace, name) is not None)

    def explain(self, pods: Sequence[ClaimPod]) -> Iterator[tuple[str, str, str]]:
        """Yield the key of each of *pods* that waits, its request and the reason, in words."""
        known = _Snapshot(self)
        for pod in pods:
            found = claim_explanation.explain(known, pod.thing)
            if found is None:
                continue  # it has changed since
            hint = f"; {ROOM}" if found.why and found.why.fitting else ""
            yield pod.key, found.why.asked if found.why else "", f"{found.line()}{hint}"

    def classes(self) -> Mapping[str, Object]:
        """Return the DeviceClasses by name."""
        return claim_explanation.by_name(self._classes.values())

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim; None if there is none."""
        found: Object | None = self._claims.get(f"{namespace}/{name}")
        return found

    def template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate; None if there is none."""
        found: Object | None = self._templates.get(f"{namespace}/{name}")
        return found

    def why_not_made(self, pod: Object) -> str:
        """Return why the cluster fails to create a claim of *pod*; empty if it does not say."""
        return claim_explanation.why_not_made(self._api, pod)

    def devices(self) -> cache.Cache:
        """Return what is free of the devices of all nodes."""
        return claim_explanation.free_devices(self._slices.values(), self._claims.values())

    def _our_classes(self) -> dict[str, bool]:
        return {name: dra_objects.is_ours(thing) for name, thing in self.classes().items()}

    def _waits(self, pod: Object, ours: Mapping[str, bool]) -> bool:
        if dra_objects.whole_devices(pod):
            return True
        namespace = str(objects.section(pod, "metadata").get("namespace"))
        for entry in objects.entries(objects.section(pod, "spec"), "resourceClaims"):
            if name := claim_explanation.claim_name(pod, entry):
                claim = self.claim(namespace, name)
                spec = objects.section(claim or {}, "spec")
                waits = claim is None or not dra_objects.allocated(claim)
            else:
                template = str(entry.get("resourceClaimTemplateName"))
                made = self.template(namespace, template)
                spec, waits = objects.section(made or {}, "spec", "spec"), True
            # A class that is not there may have been meant to be ours.
            if waits and (not spec or any(ours.get(name, True) for name in _classes_of(spec))):
                return True
        return False


class _Snapshot:
    """The objects of a ClaimPods, which computes what is free once."""

    def __init__(self, claims: ClaimPods) -> None:
        self.claim, self.template = claims.claim, claims.template
        self.why_not_made = claims.why_not_made
        self.classes = functools.cache(claims.classes)
        self.devices = functools.cache(claims.devices)


@functools.lru_cache(maxsize=4096)
def _shared(text: str) -> Object:
    """Return the shared object of this JSON text."""
    found: Object = json.loads(text)
    return found


def _spec_of(thing: Object) -> Object:
    meta = objects.section(thing, "metadata")
    fields = {field: meta[field] for field in ("namespace", "name") if field in meta}
    return {"metadata": fields, "spec": objects.section(thing, "spec")}


def _classes_of(spec: Object) -> Iterator[str]:
    for request in objects.entries(objects.section(spec, "devices"), "requests"):
        for asked in (request.get("exactly"), *objects.entries(request, "firstAvailable")):
            if isinstance(asked, dict) and not asked.get("adminAccess"):
                yield str(asked.get("deviceClassName"))


def _nothing(_key: str) -> None:
    """Do nothing: the page reads these objects at its next refresh."""
