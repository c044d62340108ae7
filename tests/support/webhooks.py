"""Runs `pyvgpu webhook` as a process for the cluster of ``make e2e``, with the chart's objects.

It has exactly its ServiceAccount's RBAC rules. Its Service routes to this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import charted
import gpu_pods as gpu
import pytest
import rig
import runner
import served
import waiting

from pyvgpu.controller.certs import serving_certificate
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-webhook")
ADDRESS, PORT, HEALTH = "10.97.0.1", 18443, 18444  # the node's, in the cluster's network
SECONDS = waiting.PROMPT
DRY = {"dryRun": "All"}
AUTHORITY = f"{os.environ.get('CLUSTER_RUN', '')}/pki/ca.crt"  # the cluster's


def kubectl(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl; any exit code is allowed."""
    command = ["kubectl", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True)


@contextlib.contextmanager
def installed(*templates: str, setting: str) -> Iterator[None]:
    """Apply the objects of chart templates, except Deployments, during the block."""
    made = charted.part(templates, setting)
    things = [_led_here(document) for document in made if document["kind"] != "Deployment"]
    if any(thing["kind"] == "Service" for thing in things):
        things.append(_endpoint())
    text = charted.listed(things)
    rig.apply()
    done = kubectl("apply", "-f", "-", text=text)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", text=text)


def arguments(deployment: dict[str, Any]) -> list[str]:
    """Return the arguments of a Deployment's first container."""
    return list(deployment["spec"]["template"]["spec"]["containers"][0]["args"])


def _led_here(thing: dict[str, Any]) -> dict[str, Any]:
    if thing["kind"] == "Service":
        del thing["spec"]["selector"]
    return thing


def _endpoint() -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": PLACE.name}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": PLACE.name, "namespace": PLACE.namespace, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}],
    }


class Webhook:
    """The process, which tests can stop and restart."""

    options = ("--scheduler=default-scheduler", "--allow-host-path=/data")

    def __init__(self, folder: Path) -> None:
        self.log = folder / "webhook.log"
        self._config = folder / "webhook.kubeconfig"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start it, and wait until it is ready."""
        self.launch(*options)
        waiting.wait_until(lambda: self.page("/readyz") == 200, SECONDS, self.log.read_text)

    def launch(self, *options: str) -> None:
        """Start it without waiting."""
        rig.write_kubeconfig(self._config, PLACE.namespace, "webhook")
        where = [f"--serve={ADDRESS}:{PORT}", f"--listen={ADDRESS}:{HEALTH}"]
        command = [str(runner.PYVGPU), "webhook", f"--kubeconfig={self._config}", *where]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log)

    @contextlib.contextmanager
    def other(self, *options: str) -> Iterator[None]:
        """Restart it with more options during the block, without waiting until it is ready."""
        self.kill()
        self.launch(*self.options, *options)
        try:
            yield
        finally:
            self.kill()
            self.start(*self.options)

    def page(self, path: str) -> int:
        """Return the status code of a page of its health port, 0 if nothing answers."""
        return served.page(f"{ADDRESS}:{HEALTH}", path)[0]

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM; return its exit code."""
        if self._process is None or self._process.poll() is not None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(SECONDS)


@contextlib.contextmanager
def rights(
    name: str, verbs: str, resources: str, user: str = "system:serviceaccount:pyvgpu:webhook"
) -> Iterator[None]:
    """Give a user more RBAC rules during the block."""
    for what in (
        ("clusterrole", name, f"--verb={verbs}", f"--resource={resources}"),
        ("clusterrolebinding", name, f"--clusterrole={name}", f"--user={user}"),
    ):
        done = kubectl("create", *what)
        assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        kubectl("delete", "clusterrolebinding,clusterrole", name)


def as_user(user: str, *arguments: str, thing: Any = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl as another user."""
    return kubectl(f"--as={user}", *arguments, text=None if thing is None else json.dumps(thing))


def sharing(name: str = "p", **spec: Any) -> dict[str, Any]:
    """Return a pod that requests a share of a device."""
    pod = plain(name, **spec)
    pod["spec"]["containers"][0] |= {"resources": gpu.container("a", 50, 8)["resources"]}
    return pod


def plain(name: str = "p", **spec: Any) -> dict[str, Any]:
    """Return a pod that requests no device."""
    return rig.pod(name, rig.container("a", "sleep 1000"), **spec)


def dry_run(space: rig.Space, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that the API server would create, by a dry run."""
    return space.server.call("POST", space.path("pods"), DRY, pod)


def refused(call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """Return the message with which the API server refuses a call."""
    with pytest.raises(apiserver.ServerError) as caught:
        call(*arguments, **more)
    return str(caught.value)
