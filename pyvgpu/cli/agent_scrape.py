"""Read the metrics of node agents through the API server's pod proxy."""

from __future__ import annotations

import concurrent.futures
import urllib.parse
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.kubectl import agent_metrics
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyvgpu.kube.objects import Object

_PROGRAMS = ("device-plugin", "dra-driver")  # the commands that run as node agents
_PORT = "metrics"
_AT_ONCE = 16  # concurrent requests
_SECONDS = 10


def reports(
    api: apiserver.ApiServer, namespace: str, nodes: Collection[str] | None
) -> dict[str, agent_metrics.AgentMetrics | str] | None:
    """Return the report of each agent in *namespace* on *nodes* (None: all), or its error text.

    None if we may not list the agents' pods.
    """
    try:
        found = api.items(f"/api/v1/namespaces/{namespace}/pods", {})[0]
    except apiserver.ServerError as exc:
        if exc.status not in (403, 404):
            raise
        return None
    asked = {
        str(objects.section(pod, "spec").get("nodeName")): url
        for pod in found
        if (url := proxy(pod)) is not None
    }
    if nodes is not None:
        asked = {node: url for node, url in asked.items() if node in nodes}
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda url: _ask(api, url), asked.values())
        return dict(zip(asked, answers, strict=True))


def _ask(api: apiserver.ApiServer, url: str) -> agent_metrics.AgentMetrics | str:
    try:
        return agent_metrics.read(api.text(url, _SECONDS))
    except errors.PyVgpuError as exc:
        return str(exc)


def proxy(pod: Object) -> str | None:
    """Return the API server's proxy path to an agent's metrics; None if *pod* is not an agent."""
    meta, spec = objects.section(pod, "metadata"), objects.section(pod, "spec")
    if not spec.get("nodeName"):
        return None
    for container in objects.entries(spec, "containers"):
        words = (*objects.words(container, "command"), *objects.words(container, "args"))
        for port in objects.entries(container, "ports"):
            if port.get("name") == _PORT and any(word in _PROGRAMS for word in words):
                pods = f"/api/v1/namespaces/{meta.get('namespace')}/pods"
                name = urllib.parse.quote(f"{meta.get('name')}:{port.get('containerPort')}", ":")
                return f"{pods}/{name}/proxy/metrics"
    return None
