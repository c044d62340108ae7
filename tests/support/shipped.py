"""Installs the chart's sidecar and webhook templates in the cluster of ``make e2e``."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Any

import charted
import rig
import waiting
import yaml

from pyvgpu.controller.certs import serving_certificate
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE = "pyvgpu"
NATIVE = "native"  # name prefix of namespaces with conversion to native sidecars
APPS = ("sidecar-controller", "sidecar-node", "webhook")
PLACE = serving_certificate.ServerObjects(NAMESPACE, "pyvgpu-webhook")


def kubectl(*arguments: str, text: str | None = None) -> str:
    """Run kubectl in our namespace; return its output."""
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests() -> str:
    """Return the manifests to install.

    They name this cluster's runtime socket, and convert to native sidecars in some namespaces.
    """
    run = os.environ["CLUSTER_RUN"]
    settings = (
        charted.SIDECARS,
        f"sidecar.runtime={run}/containerd/containerd.sock,sidecar.begun={run}/begun",
        f"webhook.options[0]=--convert-to-native={NATIVE}-*",
    )
    return yaml.safe_dump_all(charted.part(["sidecar/", "webhook/"], *settings))


def install() -> None:
    """Install everything unless it is installed, and wait for the rollout."""
    rig.apply()
    kubectl("apply", "-f", "-", text=manifests())
    for kind, app in zip(("deployment", "daemonset", "deployment"), APPS, strict=True):
        kubectl("rollout", "status", "--timeout=150s", f"{kind}/{app}")


def remove() -> None:
    """Delete everything, wait until its pods are gone, and delete their leases."""
    kubectl("delete", "-f", "-", "--ignore-not-found", text=manifests())
    of_ours = f"--selector=app in ({','.join(APPS)})"
    kubectl("wait", "pods", of_ours, "--for=delete", "--timeout=90s")
    kubectl("delete", "leases", "--all")


def logs() -> str:
    """Return the logs of all our programs."""
    return "".join(
        kubectl("logs", f"--selector=app={app}", "--tail=-1", "--prefix") for app in APPS
    )


def webhooks(ours: rig.Space) -> list[dict[str, Any]]:
    """Return the webhook's pods, including terminating ones."""
    return ours.server.items(ours.path("pods"), {"labelSelector": "app=webhook"})[0]


def roll_out(ours: rig.Space) -> None:
    """Wait for the webhook's rollout, and until no older pod is left."""
    kubectl("rollout", "status", "--timeout=150s", "deployment/webhook")
    wanted = ours.read("deployments", "webhook")["spec"]["replicas"]
    waiting.wait_until(lambda: len(webhooks(ours)) == wanted)


@contextlib.contextmanager
def failing_closed(ours: rig.Space) -> Iterator[None]:
    """Set the sidecar webhook's failurePolicy to Fail during the block."""

    hooks = ours.server.call("GET", PLACE.mutating)["webhooks"]
    (at,) = (place for place, hook in enumerate(hooks) if hook["name"] == "sidecars.pyvgpu.io")

    def put(value: str) -> None:
        body = [{"op": "replace", "path": f"/webhooks/{at}/failurePolicy", "value": value}]
        ours.server.call("PATCH", PLACE.mutating, body=body, kind=apiserver.JSON_PATCH)

    put("Fail")
    try:
        yield
    finally:
        put("Ignore")
