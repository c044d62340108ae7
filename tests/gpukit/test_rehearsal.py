"""The kit from its tar file, in a fresh folder, as an unprivileged user without a network."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from pyvgpu.cli import calibrate
from pyvgpu.simulation import law as laws
from pyvgpu.simulation import machines

pytestmark = pytest.mark.rehearsal
DIST = pathlib.Path(__file__).resolve().parents[2] / "dist"
UNPRIVILEGED = 65534
# Not measured by any stage, or measured by the host's clock, so never exact:
UNSEEN = ("events_in_turn", "pool_chunk_ns", "dma_buf", "cgroup_limits")
UNSEEN += ("checkpoint_percent", "restore_percent", "sync_ignores_lock")
UNSEEN += ("mps_overlap", "mps_server_bytes", "mps_clients")
USUAL = {key: value for key, value in dataclasses.asdict(laws.Law()).items() if key not in UNSEEN}
NOT_REACHED = 75  # of the exit codes of run
MOST_COMMANDS = 3  # of nine minutes each


@pytest.fixture
def kit(open_folder):
    tar = DIST / "pyvgpu-gpu-kit.tar.gz"
    if not tar.exists():
        pytest.skip("no kit here: make gpu-kit")
    if not pathlib.Path("/usr/bin/python3").exists():
        pytest.skip("no python3 for every user here: apt-get install python3")
    if os.geteuid():
        pytest.skip("needs root: acts as another user, in a network of its own")
    subprocess.run(["tar", "-xzf", tar, "-C", open_folder], check=True)
    home = open_folder / "home"
    home.mkdir()
    shutil.chown(home, UNPRIVILEGED, UNPRIVILEGED)
    return open_folder / "pyvgpu-gpu-kit", home


def run(kit, *arguments):
    """Run the kit to its end as another user, in a separate network namespace."""
    folder, home = kit
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHON": "/usr/bin/python3",  # Debian's: another user may not be able to access ours
        "PYVGPU_SIMULATED_MACHINES": str(home / "machines"),
    }
    user = (f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}")
    as_other = ["unshare", "--net", "setpriv", *user]
    options = ["--minutes", "9", "--out", str(home / "out"), *arguments]
    resume = []
    for _ in range(MOST_COMMANDS):
        done = subprocess.run(
            [*as_other, "--clear-groups", str(folder / "run"), *options, *resume],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout, done.stderr)
        if done.returncode != NOT_REACHED:
            break
        resume = ["--resume"]
    return done


def calibrated(home):
    """Return the output of `pyvgpu calibrate` for the record."""
    program = pathlib.Path(sys.executable).with_name("pyvgpu")
    command = [program, "calibrate", home / "out", "--simulated"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.timeout(MOST_COMMANDS * 600)
def test_every_stage_passes_on_the_simulator_and_every_claim_holds(kit):
    _, home = kit
    done = run(kit, "--simulate", "h100")
    kept = json.loads((home / "out" / "record.json").read_text())
    assert {name: entry["state"] for name, entry in kept["stages"].items()} == dict.fromkeys(
        kept["stages"], "done"
    )
    assert done.returncode == 0
    files = list((home / "out").iterdir())
    assert len(files) <= 8
    assert all(path.stat().st_size < 16 << 20 for path in files)
    found = calibrated(home)
    assert [figure["title"] for figure in found["figures"] if figure["measured"] is None] == []
    assert {key: found["machine"][key]["value"] for key in USUAL} == USUAL


def test_a_machine_with_another_law_is_found_to_have_it(kit):
    _, home = kit
    law = {**USUAL, "slice_ns": 2_500_000, "switch_ns": 100_000, "queue_depth": 300}
    law |= {"event_ns": 3000, "event_late_ns": 1500, "large_bytes": 1 << 20}
    law |= {"small_bytes": 1024, "pool_chunk_bytes": 64 << 20, "fork_keeps": False}
    law |= {"second_context_percent": 50, "green_context_percent": 10}
    late = law.pop("nvml_load_late_ns") + 300_000_000  # by the host's clock, so never exact
    rendered = laws.Law(**law, nvml_load_late_ns=late).render()
    values = {**rendered, "context_bytes": str(600 << 20)}
    machines.write(home / "other.machine", "h100", values, ())
    (home / "other.machine").chmod(0o644)
    stages = calibrate.LAW_STAGES.split()
    assert run(kit, "--simulate", "other.machine", "--only", "facts", *stages).returncode == 0
    found = calibrated(home)["machine"]
    assert {key: found[key]["value"] for key in law} == law
    assert found["context_bytes"]["value"] == 600 << 20
    assert found["nvml_load_late_ns"]["value"] >= late
