#!/usr/bin/env python3
"""Render the manifests of `pyvgpu manifests` with helm, into deploy/plain: `make manifests`.

render.py FOLDER            write them to FOLDER, with the helm beside this Python, or in PATH
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

from pyvgpu.cli import manifests

CHART = pathlib.Path(__file__).parent / "chart/pyvgpu"
_BUILT = pathlib.Path(sys.executable).with_name("helm")
HELM = str(_BUILT) if _BUILT.exists() else "helm"
_HEAD = """\
# Rendered by helm from deploy/chart/pyvgpu with {}, by `make manifests`.
# Change the chart, not this file.
#
"""
_NAMESPACE = f"""\
# Namespace of all programs but the agents. Privileged: sidecar-node mounts folders of nodes.
apiVersion: v1
kind: Namespace
metadata:
  name: {manifests.NAMESPACE}
  labels: {{pod-security.kubernetes.io/enforce: privileged}}
"""


def main() -> None:
    """Write all manifests into a folder."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    for name in manifests.SETS:
        folder.joinpath(f"{name}.yaml").write_text(render(name))


def render(name: str) -> str:
    """Return the manifest *name*, rendered from the current chart."""
    options = [word for setting in manifests.SETS[name][0] for word in ("--set", setting)]
    return _HEAD.format(" ".join(options) or "no --set") + _NAMESPACE + template(*options)


def template(*options: str, namespace: str = manifests.NAMESPACE) -> str:
    """Return helm's output with these options; CalledProcessError if helm fails."""
    where = ("--namespace", namespace, "--kube-version", manifests.KUBERNETES)
    command = [HELM, "template", manifests.RELEASE, CHART, *where, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
