"""Cluster diagnostics of the support bundle: our own programs, and pods that request devices.

Secrets, ConfigMaps and tokens are never requested; images, commands and environments of users'
pods are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.bundle import shapes
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
    yield "cluster/nodes.json", _listed(api, "/api/v1/nodes", shapes.NODE)
    yield "cluster/pods.json", _listed(api, "/api/v1/pods", shapes.POD, asks)
    events = _listed(
        api,
        "/api/v1/events",
        shapes.EVENT,
        lambda event: str(event.get("reason")).startswith("VGPU"),
    )
    yield "cluster/events.json", events
    yield (
        "cluster/resourceslices.json",
        _listed(api, f"{_RESOURCES}/resourceslices", shapes.SLICE, _is_ours),
    )
    yield "cluster/resourceclaims.json", _listed(api, f"{_RESOURCES}/resourceclaims", shapes.CLAIM)
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        found = _listed(api, f"{_ADMISSION}/{kind}", shapes.WEBHOOK, _is_called_ours)
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
        yield f"cluster/{space}/{kind}.json", _listed(api, path, shapes.WORKLOAD)
    folder, listed = f"/api/v1/namespaces/{space}", f"cluster/{space}/pods.json"
    try:
        pods = api.items(f"{folder}/pods", {})[0]
    except apiserver.ServerError as exc:
        yield listed, _error(exc)
        return
    yield listed, [shapes.kept(own_pod, shapes.OWN_POD) for own_pod in pods]
    for pod in pods:
        name = str(objects.section(pod, "metadata").get("name"))
        for container in objects.entries(objects.section(pod, "spec"), "containers"):
            called = str(container.get("name"))
            path = f"{folder}/pods/{name}/log?tailLines={LINES}&container={called}"
            yield f"cluster/{space}/logs/{name}.{called}.txt", _log(api, path)


def _listed(
    api: apiserver.ApiServer,
    path: str,
    shape: shapes.Shape,
    wanted: Callable[[Object], bool] = lambda _: True,
) -> Any:
    try:
        found = api.items(path, {})[0]
    except apiserver.ServerError as exc:
        return _error(exc)
    return [shapes.kept(thing, shape) for thing in found if wanted(thing)]


def _asked(api: apiserver.ApiServer, path: str) -> object:
    try:
        return shapes.kept(api.call("GET", path), {"gitVersion": shapes.KEEP})
    except apiserver.ServerError as exc:
        return _error(exc)


def _error(exc: apiserver.ServerError) -> dict[str, str]:
    return {"error": shapes.text(str(exc))}


def _log(api: apiserver.ApiServer, path: str) -> str:
    try:
        return shapes.text(api.text(path))
    except apiserver.ServerError as exc:
        return shapes.text(f"{exc}\n")


def _is_ours(slice_: Object) -> bool:
    return objects.section(slice_, "spec").get("driver") == names.DRA_DRIVER


def _is_called_ours(thing: Object) -> bool:
    return str(objects.section(thing, "metadata").get("name")).startswith("pyvgpu")
