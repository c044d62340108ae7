"""Cluster diagnostics of the support bundle: our own programs, and pods that request devices.

Secrets, ConfigMaps and tokens are never requested; images, commands and environments of users'
pods are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.bundle import allow_lists
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyvgpu.kube.objects import Object

LINES = 2000  # of each log
_RESOURCES = "/apis/resource.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def documents(api: apiserver.ApiServer, namespaces: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the names and contents of files; a failed request becomes its error message."""
    yield "cluster/version.json", _asked(api, "/version")
    yield "cluster/nodes.json", _listed(api, "/api/v1/nodes", allow_lists.NODE)
    yield "cluster/pods.json", _listed(api, "/api/v1/pods", allow_lists.POD, asks)
    events = _listed(
        api,
        "/api/v1/events",
        allow_lists.EVENT,
        lambda event: str(event.get("reason")).startswith("VGPU"),
    )
    yield "cluster/events.json", events
    yield (
        "cluster/resourceslices.json",
        _listed(api, f"{_RESOURCES}/resourceslices", allow_lists.SLICE, _is_ours),
    )
    yield (
        "cluster/resourceclaims.json",
        _listed(api, f"{_RESOURCES}/resourceclaims", allow_lists.CLAIM),
    )
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        found = _listed(api, f"{_ADMISSION}/{kind}", allow_lists.WEBHOOK, _is_called_ours)
        yield f"cluster/{kind}.json", found
    for space in namespaces:
        yield from _own(api, space)


def asks(pod: Object) -> bool:
    """Return whether a pod requests devices, by limits or by a claim."""
    spec = objects.section(pod, "spec")
    if objects.entries(spec, "resourceClaims"):
        return True
    containers = (*objects.entries(spec, "containers"), *objects.entries(spec, "initContainers"))
    ours = (f"{names.DOMAIN}/", f"{names.GAIA_DOMAIN}/")
    return any(
        str(key).startswith(ours)
        for container in containers
        for key in objects.section(container, "resources", "limits")
    )


def _own(api: apiserver.ApiServer, space: str) -> Iterator[tuple[str, object]]:
    for kind in ("deployments", "daemonsets"):
        path = f"/apis/apps/v1/namespaces/{space}/{kind}"
        yield f"cluster/{space}/{kind}.json", _listed(api, path, allow_lists.WORKLOAD)
    folder, listed = f"/api/v1/namespaces/{space}", f"cluster/{space}/pods.json"
    try:
        pods = api.items(f"{folder}/pods", {})[0]
    except apiserver.ServerError as exc:
        yield listed, _error(exc)
        return
    yield listed, [allow_lists.kept(own_pod, allow_lists.OWN_POD) for own_pod in pods]
    for pod in pods:
        name = str(objects.section(pod, "metadata").get("name"))
        for container in objects.entries(objects.section(pod, "spec"), "containers"):
            called = str(container.get("name"))
            path = f"{folder}/pods/{name}/log?tailLines={LINES}&container={called}"
            yield f"cluster/{space}/logs/{name}.{called}.txt", _log(api, path)


def _listed(
    api: apiserver.ApiServer,
    path: str,
    shape: allow_lists.Shape,
    wanted: Callable[[Object], bool] = lambda _: True,
) -> Any:
    try:
        found = api.items(path, {})[0]
    except apiserver.ServerError as exc:
        return _error(exc)
    return [allow_lists.kept(thing, shape) for thing in found if wanted(thing)]


def _asked(api: apiserver.ApiServer, path: str) -> object:
    try:
        return allow_lists.kept(api.call("GET", path), {"gitVersion": allow_lists.KEEP})
    except apiserver.ServerError as exc:
        return _error(exc)


def _error(exc: apiserver.ServerError) -> dict[str, str]:
    return {"error": allow_lists.text(str(exc))}


def _log(api: apiserver.ApiServer, path: str) -> str:
    try:
        return allow_lists.text(api.text(path))
    except apiserver.ServerError as exc:
        return allow_lists.text(f"{exc}\n")


def _is_ours(slice_: Object) -> bool:
    return objects.section(slice_, "spec").get("driver") == names.DRA_DRIVER


def _is_called_ours(thing: Object) -> bool:
    return str(objects.section(thing, "metadata").get("name")).startswith("pyvgpu")
