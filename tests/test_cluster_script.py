"""The script that builds and starts the clusters of the e2e tests says what it lacks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "e2e" / "cluster" / "cluster"


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("build", "k8s.io/kubernetes@v1.31.14"),
        ("operator", "github.com/kubeflow/training-operator"),
    ],
)
def test_a_go_module_that_cannot_be_fetched_is_named(tmp_path, command, module):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if not shutil.which("go", path=path):
        pytest.skip("needs Go")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kube").touch()  # of the newest version
    settings = {
        "CLUSTER_BIN": str(programs),
        "CLUSTER_HOME": str(tmp_path),
        "CLUSTER_KUBERNETES": "1.31.14",
        "GOMODCACHE": str(tmp_path / "modules"),
        "GOPROXY": "off",
        "PATH": path,
    }
    done = subprocess.run(
        [SCRIPT, command], env={**os.environ, **settings}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"cluster: cannot fetch {module}" in done.stderr
    assert "module lookup disabled by GOPROXY=off" in done.stderr
    assert "check the network, and run this again" in done.stderr
