"""What is shipped, installed in the cluster as a user does it, while its tests run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import rig
import shipped as made

MANIFESTS = Path(__file__).parents[3] / "deploy/sidecar"


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
    made.kubectl("apply", "-f", "-", text=rendered)
    try:
        for kind, app in zip(("deployment", "daemonset", "deployment"), made.APPS, strict=True):
            made.kubectl("rollout", "status", "--timeout=150s", f"{kind}/{app}")
        yield rig.everybodys(made.NAMESPACE)
    finally:
        print(made.kubectl("get", "pods", "--output=wide"), made.logs())
        made.kubectl("delete", "-f", "-", "--ignore-not-found", text=rendered)
