"""`pyvgpu cdi`: quotas for containers; Podman starts them, on the simulated driver."""

import contextlib
import json
import re
import subprocess
from pathlib import Path

import documented
import podman_rig
import pytest
import rights
from runner import PYVGPU
from waiting import WHOLE, wait_until

from pyvgpu import cli, shim

from .conftest import reservation_folders

GIB, MIB = 1 << 30, 1 << 20
CDI = Path("/var/run/cdi")  # which Podman reads


def cdi(runner, *arguments):
    return [PYVGPU, "cdi", "--simulate", runner.machine, *map(str, arguments)]


@contextlib.contextmanager
def held(runner, *arguments):
    """Hold a quota without a command; yield its process, and the printed specification."""
    with subprocess.Popen(
        cdi(runner, *arguments), env=runner.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(WHOLE)


def mounts(specification):
    (only,) = specification["devices"]
    return {
        mount["containerPath"]: (mount["hostPath"], mount["options"])
        for mount in only["containerEdits"]["mounts"]
    }


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    podman_rig.make_root(folder, shim.tenant_program())
    return folder


@pytest.fixture
def podman(runner, tmp_path):
    """Return a function that starts `pyvgpu cdi` with a Podman container of the quota."""
    environment = {**podman_rig.environment(tmp_path), **runner.environment}
    CDI.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def start(name, root, *command, options=()):
        file = CDI / f"{name}.json"
        engine = ["podman", "run", "--rm", "--interactive", "--device", f"pyvgpu.io/run={name}"]
        given = ("--name", name, "--output", file, *options, "--")
        with subprocess.Popen(
            [*cdi(runner, *given), *engine, "--rootfs", str(root), *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
                process.stdin.close()
                process.wait(WHOLE)
            finally:  # a killed podman would leave mounts
                process.terminate()
                process.wait(WHOLE)
                file.unlink(missing_ok=True)

    return start


def events(process, *until):
    """Return the container's events up to one of the kinds *until*."""
    found = []
    while not found or found[-1]["event"] not in until:
        line = process.stdout.readline()
        assert line, (found, process.stderr.read())
        found.append(json.loads(line))
    return found


@rights.as_root
@rights.needs_mounts
@pytest.mark.slow
def test_a_podman_container_is_held_to_its_quota(runner, podman, name, root):
    tenant = ("/bin/tenant", "hold", str(GIB))
    options = ("--vmemory", "2GiB", "--vcore", "30")
    with podman(name, root, *tenant, options=options) as process:
        started, _ = events(process, "held")
        assert started["total"] == 2 * GIB
        entry = runner.listed(name)
        assert (entry["vcore"], entry["vmemory_bytes"]) == (30, 2 * GIB)
        assert entry["held_bytes"] > GIB
        assert "podman run" in entry["command_line"]
        (reservation,) = reservation_folders(name)
        wait_until((reservation / "container" / "clock" / "0").exists)
        changed = subprocess.run(
            [PYVGPU, "set", name, "--vmemory", "3GiB"], env=runner.environment, check=False
        )
        assert changed.returncode == 0
        assert runner.listed(name)["vmemory_bytes"] == 3 * GIB
        process.stdin.close()
        assert process.wait(WHOLE) == 0
    assert not (CDI / f"{name}.json").exists()
    assert reservation_folders(name) == []


@rights.as_root
@rights.needs_mounts
@pytest.mark.slow
def test_the_command_of_the_page_starts_a_container_with_its_quota(runner, name, root, tmp_path):
    page = documented.ROOT / "docs/containers.md"
    (step,) = [text for mark, _, text in documented.blocks(page) if mark == "podman"]
    step = step.replace("IMAGE python train.py", f"--rootfs {root} /bin/tenant hold {GIB}")
    step = re.sub(r"(?<=[=/ ])train(?=[ .])", name, step)
    simulated = f'shift; exec {PYVGPU} cdi --simulate {runner.machine} "$@"'
    programs = {"sudo": 'exec "$@"', "pyvgpu": simulated}
    for program, line in programs.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / program).chmod(0o755)
    CDI.mkdir(parents=True, exist_ok=True)
    environment = {**podman_rig.environment(tmp_path), **runner.environment}
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
    assert not (CDI / f"{name}.json").exists()


@rights.as_root
@rights.needs_mounts
@pytest.mark.slow
def test_more_than_the_quota_is_refused_in_a_container(podman, name, root):
    tenant = ("/bin/tenant", "hold", str(3 * GIB))
    with podman(name, root, *tenant, options=("--vmemory", "2GiB")) as process:
        failed = events(process, "failed", "held")[-1]
        assert failed["name"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.slow
def test_the_container_gets_quota_usage_and_clock_alone(runner, name):
    with held(runner, "--name", name, "--vmemory", "2GiB", "--vcore", "30") as (_, specification):
        assert specification["kind"] == "pyvgpu.io/run"
        assert [device["name"] for device in specification["devices"]] == [name]
        found = mounts(specification)
        quota, options = found["/etc/pyvgpu"]
        assert "ro" in options
        assert sorted(path.name for path in Path(quota).iterdir()) == ["clock", "quota", "usage"]
        assert "rw" in found["/run/pyvgpu/usage"][1]
        assert Path(found["/run/pyvgpu/usage"][0]).stat().st_mode & 0o777 == 0o644
    assert reservation_folders(name) == []


@pytest.mark.slow
def test_any_user_can_write_the_usage_file_if_wanted(runner, name):
    with held(runner, "--name", name, "--vmemory", "2GiB", "--any-user") as (_, specification):
        usage = Path(mounts(specification)["/run/pyvgpu/usage"][0])
        assert usage.stat().st_mode & 0o777 == 0o666


@pytest.mark.slow
def test_reservations_of_containers_and_runs_add_up(runner, name):
    with held(runner, "--name", name, "--vmemory", "70GiB"):
        ran = runner("--vmemory", "20GiB", "true")
        assert ran.returncode == 69
        assert f"{name} 70GiB" in ran.stderr


@pytest.mark.slow
def test_a_killed_command_leaves_no_specification(runner, name, tmp_path):
    file = tmp_path / "quota.json"
    arguments = ("--name", name, "--vmemory", "2GiB", "--output", file)
    with subprocess.Popen(cdi(runner, *arguments), env=runner.environment) as process:
        wait_until(file.exists)
        process.kill()
    wait_until(lambda: not file.exists())
    wait_until(lambda: reservation_folders(name) == [])


def test_whole_devices_have_no_quota(runner, tmp_path):
    file = tmp_path / "devices.json"
    runner.machine = "h100:2"
    ran = subprocess.run(
        cdi(runner, "--devices", "--output", file),
        env=runner.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    written = json.loads(file.read_text())
    assert written["kind"] == "pyvgpu.io/gpu"
    named = [device["name"] for device in written["devices"]]
    assert {"0", "1", "all"} < set(named)
    assert len([name for name in named if name.startswith("GPU-")]) == 2
    assert "/etc/pyvgpu" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--simulate", "h100"], "no quota is given, such as `pyvgpu cdi --vmemory 8GiB`"),
        (["--devices", "--vcore", "3"], "--devices and --vcore: must not both be given"),
        (["--devices", "--", "true"], "--devices and COMMAND: must not both be given"),
        (["--vcore", "3", "--output", "x"], "runtimes read only files whose name ends in .json"),
        (["--vcore", "0"], "--vcore '0': must be"),
        (["--vcore", "3", "--name", "A"], "--name 'A': must be lower-case letters"),
    ],
)
def test_invalid_options_are_refused(capsys, arguments, message):
    assert cli.main(["cdi", *arguments]) == 64
    assert message in capsys.readouterr().err
