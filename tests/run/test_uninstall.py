"""`pyvgpu uninstall`: lists and removes every trace, never another user's or a live run's."""

import json
import os
import subprocess
import sys

import pytest
from runner import PYVGPU

from pyvgpu import errors
from pyvgpu.run import traces


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def places(tmp_path):
    """Return places with a trace of each kind."""
    made = traces.MachinePlaces(
        registries=(tmp_path / "registry",),
        specifications=(tmp_path / "cdi",),
        memory=(tmp_path / "shm",),
        cache=tmp_path / "tmp",
    )
    for folder in (*made.registries, *made.specifications, *made.memory, made.cache):
        folder.mkdir()
    uid = os.geteuid()
    (made.memory[0] / f"pyvgpu-simulator-{uid}" / "h100").mkdir(parents=True)
    (made.memory[0] / "pyvgpu-demo-7-abc").mkdir()
    (made.cache / f"pyvgpu-{uid}" / "mirror").mkdir(parents=True)
    (made.registries[0] / f"arbiter-{uid}").mkdir()
    for name, kind in (("a", "pyvgpu.io/run"), ("b", "pyvgpu.io/gpu"), ("c", "nvidia.com/gpu")):
        (made.specifications[0] / f"{name}.json").write_text(json.dumps({"kind": kind}))
    (made.specifications[0] / "broken.json").write_text("[")
    return made


@pytest.fixture
def environment(home):
    completion = home / ".zfunc" / "_pyvgpu"
    completion.parent.mkdir(parents=True)
    completion.touch()
    (home / ".cache" / "pyvgpu" / "runs").mkdir(parents=True)
    (home / ".cache" / "other").mkdir()
    return {"HOME": str(home)}


def test_every_trace_is_removed_and_nothing_else(places, environment, home, tmp_path):
    for trace in traces.find(environment, places):
        traces.remove(trace)
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"cdi/c.json", "cdi/broken.json"}
    assert list(places.memory[0].iterdir()) == list(places.cache.iterdir()) == []
    assert not places.registries[0].exists()
    assert [path.name for path in (home / ".cache").iterdir()] == ["other"]
    assert traces.find(environment, places) == ()


def test_links_are_left_alone(places, environment, tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (places.memory[0] / "pyvgpu-simulator-99").symlink_to(target)
    inside = places.memory[0] / f"pyvgpu-simulator-{os.geteuid()}" / "link"
    inside.symlink_to(target)
    for trace in traces.find(environment, places):
        traces.remove(trace)
    assert target.is_dir()


def uninstall(runner, *options):
    return subprocess.run(
        [PYVGPU, "uninstall", *options],
        env={**runner.environment, "HOME": str(runner.cache.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_active_runs_are_named_and_nothing_is_removed(runner, name):
    with runner.started("--name", name, "--vmemory", "2GiB", "sh", "-c", "echo; read x") as run:
        run.stdout.readline()
        refused = uninstall(runner)
        assert refused.returncode == errors.UnavailableError.exit_code
        assert f"{name} (pid {run.pid})" in refused.stderr
        assert refused.stdout == ""
        listed = uninstall(runner, "--dry-run")
        assert f"would remove {runner.cache}/pyvgpu: copies of the driver's libraries" in (
            listed.stdout
        )
        assert listed.stdout.endswith(f"{sys.executable} -m pip uninstall pyvgpu\n")
        assert (runner.cache / "pyvgpu").exists()


IN_A_MOUNT_NAMESPACE = """
set -e
mkdir -p "$1/arbiter-0" "$1/mounted"
mount -t tmpfs none "$1/$2"
touch "$1/$2/kept"
"$3" - "$1" <<'PROGRAM' || true
import pathlib, sys
from pyvgpu.run import traces
traces.remove(traces.Leftover(pathlib.Path(sys.argv[1]), "x"))
PROGRAM
ls "$1/$2"
"""


@pytest.mark.parametrize("below", [".", "mounted"])
def test_mount_point_is_named_and_keeps_its_files(tmp_path, below):
    folder = tmp_path / "registry"
    script = ("sh", "-c", IN_A_MOUNT_NAMESPACE, "sh", folder, below, sys.executable)
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *script],
        capture_output=True,
        text=True,
        check=True,
    )
    point = folder / below
    assert f"{folder}: cannot be removed: {point} is a mount point; unmount it" in ran.stderr
    assert ran.stdout == "kept\n"
    assert (folder / "arbiter-0").is_dir()
