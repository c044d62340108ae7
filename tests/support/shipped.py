"""What ``kubectl apply -k deploy/sidecar`` made in the cluster of ``make e2e``."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import waiting

from pyvgpu.controller import server
from pyvgpu.controller.webhook import identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    import rig

NAMESPACE = "pyvgpu"
APPS = ("sidecar-controller", "sidecar-node", "webhook")
PLACE = identity.Place(NAMESPACE, "pyvgpu-webhook")


def kubectl(*arguments: str, text: str | None = None) -> str:
    """Run kubectl in our namespace, and return what it says."""
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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

    def put(value: str) -> None:
        body = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": value}]
        ours.server.call("PATCH", PLACE.configuration, body=body, kind=server.JSON_PATCH)

    put("Fail")
    try:
        yield
    finally:
        put("Ignore")
