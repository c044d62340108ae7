"""What is shipped, installed in the cluster as a user does it, while its tests run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import rig

MANIFESTS = Path(__file__).parents[3] / "deploy/sidecar"
NAMESPACE = "pyvgpu"


@pytest.fixture(scope="session")
def rendered():
    """Return the manifests; the runtime's socket is elsewhere in the rig."""
    command = ["kubectl", "kustomize", MANIFESTS]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    run = os.environ["CLUSTER_RUN"]
    return text.replace("/run/containerd", f"{run}/containerd").replace(
        "path: /run/pyvgpu/sidecars", f"path: {run}/begun"
    )


@pytest.fixture(scope="session")
def shipped(rendered):
    """Install everything, and return the namespace that it lives in."""
    kubectl("apply", "-f", "-", text=rendered)
    try:
        for it in (
            "deployment/sidecar-controller",
            "daemonset/sidecar-node",
            "deployment/webhook",
        ):
            kubectl("rollout", "status", "--timeout=150s", it)
        yield rig.everybodys(NAMESPACE)
    finally:
        print(kubectl("get", "pods", "--output=wide"))
        for app in ("sidecar-controller", "sidecar-node", "webhook"):
            print(kubectl("logs", f"--selector=app={app}", "--tail=-1", "--prefix"))
        kubectl("delete", "-f", "-", "--ignore-not-found", text=rendered)


def kubectl(*arguments, text=None):
    """Run kubectl in our namespace, and return what it says."""
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
