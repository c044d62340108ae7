"""What the chart's templates of sidecars and webhook made in the cluster of ``make e2e``."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Any

import charted
import rig
import waiting
import yaml

from pyvgpu.controller import identity
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE = "pyvgpu"
NATIVE = "native"  # how the names of such namespaces begin
APPS = ("sidecar-controller", "sidecar-node", "webhook")
PLACE = identity.Place(NAMESPACE, "pyvgpu-webhook")


def kubectl(*arguments: str, text: str | None = None) -> str:
    """Run kubectl in our namespace, and return what it says."""
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests() -> str:
    """Return what is installed.

    The runtime's socket is elsewhere in this cluster, and some namespaces want native sidecars.
    """
    run = os.environ["CLUSTER_RUN"]
    settings = (
        f"sidecar.runtime={run}/containerd/containerd.sock,sidecar.begun={run}/begun",
        f"webhook.options[0]=--convert-to-native={NATIVE}-*",
    )
    return yaml.safe_dump_all(charted.part(["sidecar/", "webhook/"], *settings))


def install() -> None:
    """Install everything, where it is not, and wait until it runs."""
    rig.apply()
    kubectl("apply", "-f", "-", text=manifests())
    for kind, app in zip(("deployment", "daemonset", "deployment"), APPS, strict=True):
        kubectl("rollout", "status", "--timeout=150s", f"{kind}/{app}")


def remove() -> None:
    """Remove everything, wait until its pods are gone, and leave no lease of them to wait for."""
    kubectl("delete", "-f", "-", "--ignore-not-found", text=manifests())
    of_ours = f"--selector=app in ({','.join(APPS)})"
    kubectl("wait", "pods", of_ours, "--for=delete", "--timeout=90s")
    kubectl("delete", "leases", "--all")


def logs() -> str:
    """Return what all our programs wrote."""
    return "".join(
        kubectl("logs", f"--selector=app={app}", "--tail=-1", "--prefix") for app in APPS
    )


def webhooks(ours: rig.Space) -> list[dict[str, Any]]:
    """Return the webhook's pods, those that end among them."""
    return ours.server.items(ours.path("pods"), {"labelSelector": "app=webhook"})[0]


def roll_out(ours: rig.Space) -> None:
    """Wait until the webhook is as it is to be, and nothing else answers."""
    kubectl("rollout", "status", "--timeout=150s", "deployment/webhook")
    wanted = ours.read("deployments", "webhook")["spec"]["replicas"]
    waiting.wait_until(lambda: len(webhooks(ours)) == wanted)


@contextlib.contextmanager
def failing_closed(ours: rig.Space) -> Iterator[None]:
    """Let pods be refused where the webhook is not reached."""

    hooks = ours.server.call("GET", PLACE.mutating)["webhooks"]
    (at,) = (place for place, it in enumerate(hooks) if it["name"] == "sidecars.pyvgpu.io")

    def put(value: str) -> None:
        body = [{"op": "replace", "path": f"/webhooks/{at}/failurePolicy", "value": value}]
        ours.server.call("PATCH", PLACE.mutating, body=body, kind=apiserver.JSON_PATCH)

    put("Fail")
    try:
        yield
    finally:
        put("Ignore")
