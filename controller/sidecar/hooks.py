"""Run a container's preStop hook and its SIDECAR_TERMINATION_COMMAND before its stop signal.

Only kubelet runs lifecycle hooks, not the container runtime; so the node part runs them when it
stops a container itself. As with kubelet, their time is part of the grace period, and a hook that
fails does not prevent the stop.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from pyvgpu.controller.sidecar import cri
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

LEAST_SECONDS = 2  # minimum left after the hook, as in kubelet


def run(
    runtime: cri.RuntimeClient, container: cri.RuntimeContainer, command: str, seconds: float
) -> float:
    """Run the hooks of a container; return what is left of its grace period of *seconds*."""
    begun = time.monotonic()
    last = {"exec": {"command": ["/bin/sh", "-c", command]}} if command else {}
    for hook in (read(container), last):
        left = seconds - (time.monotonic() - begun)
        if not hook or left <= 0:
            continue
        try:
            _run(runtime, container, hook, left)
        except (cri.RuntimeRefusedError, OSError, http.client.HTTPException, ValueError) as exc:
            log.warning("hook of container %s failed: %s", container.name, exc)
    left = seconds - (time.monotonic() - begun)
    return max(left, min(LEAST_SECONDS, seconds))


def read(container: cri.RuntimeContainer) -> Object:
    """Return the preStop hook that kubelet stored in the container's annotations."""
    try:
        hook = json.loads(container.annotations.get(cri.PRE_STOP) or "{}")
    except ValueError:
        return {}
    return hook if isinstance(hook, dict) else {}


def _run(
    runtime: cri.RuntimeClient, container: cri.RuntimeContainer, hook: Object, seconds: float
) -> None:
    command = objects.words(objects.section(hook, "exec"), "command")
    if command:
        code = runtime.execute(container.id, command, seconds)
        if code:
            log.warning("hook of container %s ended with %d", container.name, code)
    elif "httpGet" in hook:
        _get(runtime, container, objects.section(hook, "httpGet"), seconds)
    elif "sleep" in hook:
        time.sleep(min(float(objects.section(hook, "sleep").get("seconds") or 0), seconds))


def _get(
    runtime: cri.RuntimeClient, container: cri.RuntimeContainer, request: Object, seconds: float
) -> None:
    host = str(request.get("host") or "") or runtime.address(container.pod) or "127.0.0.1"
    port = _port(container, request.get("port"))
    if request.get("scheme") == "HTTPS":
        unchecked = ssl._create_unverified_context()  # noqa: S323 - as kubelet does
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=seconds, context=unchecked
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    headers = {
        str(one.get("name")): str(one.get("value"))
        for one in objects.entries(request, "httpHeaders")
    }
    try:
        connection.request("GET", _target(str(request.get("path") or "")), headers=headers)
        connection.getresponse()
    finally:
        connection.close()


def _port(container: cri.RuntimeContainer, port: Any) -> int:
    """Return the number of a port, which may be the name of one of the container's ports."""
    if str(port).isdecimal():
        return int(port)
    ports = json.loads(container.annotations.get(cri.PORTS) or "[]")
    for entry in objects.entries({"ports": ports}, "ports"):
        if entry.get("name") == port:
            return int(entry.get("containerPort") or 0)
    raise ValueError(f"port {port!r}: must be a number, or the name of a port of the container")


def _target(path: str) -> str:
    """Return the request target: with a leading slash, and invalid characters escaped."""
    whole = path if path.startswith("/") else f"/{path}"
    return urllib.parse.quote(whole, safe="/?%:@!$&'()*+,;=~-._[]")
