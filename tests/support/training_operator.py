"""Runs Kubeflow's training operator, built by ``cluster operator``, in the ``make e2e`` cluster.

It requires a certificate for its webhook: it writes the Secret and reads the files. A pod would
mount the Secret, here the files are copied. The webhook itself is not registered.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rig

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = "training-operator.v1"
KINDS = "pytorchjobs.yaml"  # its CRD, in the same folder
NAMESPACE = "kubeflow"
SECRET = "training-operator-webhook-cert"  # a name, no secret
CERTIFICATES = "/tmp/k8s-webhook-server"  # it reads them here, whatever its flags say
_WITHOUT_DNS = f'[{{name: init, image: {rig.BUSYBOX}, imagePullPolicy: Never, command: ["true"]}}]'
_ENTER = f'mkdir -p {CERTIFICATES}; mount --bind "$0" {CERTIFICATES}; exec "$@"'


@contextlib.contextmanager
def running(folder: Path) -> Iterator[None]:
    """Run the operator; yield once it has its certificate."""
    _apply(Path(str(shutil.which(PROGRAM))).with_name(KINDS).read_text())
    for thing in _things():
        _apply(json.dumps(thing))
    (folder / "init.yaml").write_text(_WITHOUT_DNS)
    (folder / "serving-certs").mkdir()
    command = [
        *("unshare", "--mount", "sh", "-c", _ENTER, folder, PROGRAM),
        "--enable-scheme=pytorchjob",
        f"--kubeconfig={os.environ['KUBECONFIG']}",
        f"--pytorch-init-container-template-file={folder / 'init.yaml'}",
        "--metrics-bind-address=127.0.0.1:18080",
        "--health-probe-bind-address=127.0.0.1:18081",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        secret = rig.as_admin(NAMESPACE).until(
            "secrets", SECRET, lambda current: current.get("data")
        )
        for name, content in secret["data"].items():
            (folder / "serving-certs" / name).write_bytes(base64.b64decode(content))
        yield
    finally:
        process.kill()
        process.wait()


def _apply(text: str) -> None:
    command = ["kubectl", "apply", "--server-side", "-f-"]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)


def _things() -> Iterator[dict[str, Any]]:
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    where = {"name": SECRET, "namespace": NAMESPACE}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": where}
    yield {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.training-operator.kubeflow.org"},
        "webhooks": [],
    }
