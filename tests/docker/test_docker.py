"""`pyvgpu cdi` with a real dockerd, in the namespaces of `make test-docker`, on simulated GPUs."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import documented
import podman_rig
import pytest
from runner import PYVGPU, Runner
from waiting import WHOLE, wait_until

from pyvgpu import shim

pytestmark = pytest.mark.docker

IMAGE = "tenant:1"
SOCKET = "unix:///run/docker.sock"
GIB = 1 << 30


def mount(folder):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)


@pytest.fixture(scope="module")
def folder():
    if os.getpid() != 1:
        pytest.skip("needs namespaces of its own: make test-docker")
    for program in ("docker", "dockerd", "containerd", "runc"):
        if not shutil.which(program):
            pytest.skip(f"needs {program} in PATH; docker of release 25 or later")
    with tempfile.TemporaryDirectory(prefix="pyvgpu-docker-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def daemon(folder):
    """Start dockerd with private storage; return the environment of its clients."""
    mount("/run")  # its sockets, the CDI specifications and our reservations
    data = folder / "data"
    data.mkdir()
    mount(data)
    settings = {
        "data-root": str(data),
        "exec-root": "/run/docker",
        "hosts": [SOCKET],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "userland-proxy": False,
        "storage-driver": "vfs",
        "features": {"containerd-snapshotter": False},
    }
    (folder / "daemon.json").write_text(json.dumps(settings))
    environment = {**os.environ, "DOCKER_HOST": SOCKET}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            ["dockerd", "--config-file", folder / "daemon.json"], stdout=log, stderr=log
        ) as process,
    ):
        answers = ["docker", "version"]
        try:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or subprocess.run(answers, env=environment, capture_output=True).returncode
                    == 0
                ),
                found=(folder / "log").read_text,
            )
            assert process.poll() is None, (folder / "log").read_text()
            yield environment
        finally:
            process.terminate()
            process.wait(WHOLE)
            subprocess.run(["umount", str(data)], check=True)


@pytest.fixture(scope="module")
def image(daemon, folder):
    root = folder / "root"
    podman_rig.make_root(root, shim.tenant_program())
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(
            ["docker", "import", "-", IMAGE], stdin=packed.stdout, env=daemon, check=True
        )
    return IMAGE


@pytest.fixture
def start(daemon, image, tmp_path):
    """Return a function that starts `pyvgpu cdi` with a Docker container of the quota."""
    runner = Runner(tmp_path)

    @contextlib.contextmanager
    def started(*tenant):
        file = Path("/var/run/cdi/train.json")
        file.parent.mkdir(exist_ok=True)
        quota = ("--name", "train", "--vcore", "30", "--vmemory", "2GiB", "--output", str(file))
        engine = ("docker", "run", "--rm", "--interactive", "--network", "none")
        device = ("--device", "pyvgpu.io/run=train")
        with subprocess.Popen(
            [PYVGPU, "cdi", "--simulate", "h100", *quota, "--", *engine, *device, image, *tenant],
            env={**daemon, **runner.environment, "DOCKER_HOST": SOCKET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield process, runner
            process.stdin.close()
            process.wait(WHOLE)
        assert not file.exists()

    return started


def test_a_docker_container_sees_its_quota_and_is_listed(start):
    with start("/bin/tenant", "hold", str(GIB)) as (process, runner):
        began, held = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (began["total"], held["event"]) == (2 * GIB, "held")
        entry = runner.listed("train")
        assert (entry["vcore"], entry["vmemory_bytes"]) == (30, 2 * GIB)
        assert entry["held_bytes"] > GIB
    assert process.returncode == 0


def test_the_command_of_the_page_starts_a_docker_container(daemon, image, tmp_path):
    page = documented.ROOT / "docs/containers.md"
    (step,) = [text for mark, _, text in documented.blocks(page) if mark == documented.DOCKER]
    tenant = f"--network none {image} /bin/tenant hold {GIB}"
    step = step.replace("IMAGE python train.py", tenant)
    runner = Runner(tmp_path)
    simulated = f'shift; exec {PYVGPU} cdi --simulate h100 "$@"'
    for program, line in {"sudo": 'exec "$@"', "pyvgpu": simulated}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / program).chmod(0o755)
    Path("/var/run/cdi").mkdir(exist_ok=True)
    environment = {**daemon, **runner.environment, "DOCKER_HOST": SOCKET}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    done = subprocess.run(
        ["sh", "-c", step],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{step}\n{done.stderr}"
    first, second = map(json.loads, done.stdout.splitlines()[:2])
    assert (first["total"], second["event"]) == (8 * GIB, "held")
    assert not Path("/var/run/cdi/train.json").exists()


def test_more_than_the_quota_is_refused_in_a_docker_container(start):
    with start("/bin/tenant", "hold", str(3 * GIB)) as (process, _):
        _, failed = (json.loads(process.stdout.readline()) for _ in range(2))
        assert failed["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert process.returncode == 1
