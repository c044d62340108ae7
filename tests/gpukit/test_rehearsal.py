"""The kit from its tar, in a fresh folder, as a user without rights and without a network."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.rehearsal
DIST = pathlib.Path(__file__).resolve().parents[2] / "dist"
NOBODY = 65534


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
    shutil.chown(home, NOBODY, NOBODY)
    return open_folder / "pyvgpu-gpu-kit", home


def test_every_stage_passes_on_the_simulator_and_every_promise_holds(kit):
    folder, home = kit
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHON": "/usr/bin/python3",  # Debian's: another user may not reach ours
        "PYVGPU_SIMULATED_MACHINES": str(home / "machines"),
    }
    as_other = ["unshare", "--net", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}"]
    options = ["--minutes", "9", "--out", str(home / "out"), "--simulate", "h100"]
    done = subprocess.run(
        [*as_other, "--clear-groups", str(folder / "run"), *options],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    kept = json.loads((home / "out" / "record.json").read_text())
    assert {name: entry["state"] for name, entry in kept["stages"].items()} == dict.fromkeys(
        kept["stages"], "done"
    )
    assert done.returncode == 0
    files = list((home / "out").iterdir())
    assert len(files) <= 8
    assert all(path.stat().st_size < 16 << 20 for path in files)
