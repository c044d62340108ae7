"""Read the one pod that a command names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object

_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_KINDS = ("pod", "pods", "po")
_OTHER_KINDS = re.compile(r"(?:deploy|statefulset|sts|daemonset|ds|replicaset|rs|job|node|svc).*")


def read(api: apiserver.ApiServer, namespace: str, name: str) -> Object:
    """Return the pod; UnavailableError says why it cannot be read, and what may be meant."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        return api.call("GET", path)
    except apiserver.ServerError as exc:
        raise errors.UnavailableError(_why_not(api, namespace, name, exc)) from exc


def pod_name(text: str) -> str:
    """Return the name in *text*, which may begin with `pod/`, as kubectl prints it.

    Raises UsageError for anything that cannot be the name of a pod.
    """
    kind, slash, name = text.rpartition("/")
    if slash and kind not in _KINDS:
        meant = "`kubectl get pods` lists them"
        if _NAME.fullmatch(kind) and _NAME.fullmatch(name) and not _OTHER_KINDS.fullmatch(kind):
            meant = f"did you mean -n {kind} {name}?"
        raise errors.UsageError(f"POD {text!r}: must be a pod, such as train-0; {meant}")
    if not _NAME.fullmatch(name):
        raise errors.UsageError(
            f"POD {text!r}: must be lower-case letters, digits, hyphens and dots, such as train-0"
        )
    return name


def _why_not(
    api: apiserver.ApiServer, namespace: str, name: str, exc: apiserver.ServerError
) -> str:
    match exc.status:
        case 404:
            instead = _instead(api, namespace, name)
            return f"POD {name}: there is none in namespace {namespace}; {instead}"
        case 403:
            return (
                f"POD {name}: you may not read pods in namespace {namespace}; this needs "
                "permission to `get pods`, such as ClusterRole view has"
            )
        case 401:
            return (
                "the API server does not know you: has the kubeconfig's token or certificate "
                "expired?"
            )
        case _:
            return str(exc)


def _instead(api: apiserver.ApiServer, namespace: str, name: str) -> str:
    """Return a hint at what was meant, such as the pods of a Job of that name."""
    query: dict[str, Any] = {"labelSelector": f"batch.kubernetes.io/job-name={name}", "limit": 3}
    try:
        found = api.call("GET", f"/api/v1/namespaces/{namespace}/pods", query).get("items") or []
    except apiserver.ServerError:
        found = []
    if not found:
        return "-n NAME names another namespace, such as -n default"
    pods_of = ", ".join(str(objects.section(pod, "metadata").get("name")) for pod in found)
    return f"it is a Job, whose pods are: {pods_of}"
