"""An unthrottled launch makes no system call, by a count of system calls."""

import shutil
import subprocess
from pathlib import Path

import pytest
from shim_room import room

from pyvgpu.simulation import simulator

FEW, MANY = 1_000, 21_000


@pytest.fixture(scope="module")
def load():
    found = Path(__file__).parents[2].glob("build/*/csrc/bench/load")
    return max(found, key=lambda path: path.stat().st_mtime)


def system_calls(load, environment, launches, place):
    """Return the number of system calls of a program that makes *launches* launches."""
    out = place / f"calls-{launches}"
    subprocess.run(
        ["strace", "-f", "-o", out, load, "launch", str(launches)],
        env=environment,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return len(out.read_text().splitlines())


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("vcore", [99, 100])
def test_unthrottled_launch_makes_no_system_call(load, tmp_path, vcore):
    """The remaining calls look for an arbiter's clock, a few times a second."""
    machine = simulator.open_machine("h100", tmp_path / "machines", mode="free")
    with room(tmp_path / "room", machine, vcore=vcore) as made:
        few = system_calls(load, made.environment(), FEW, tmp_path)
        many = system_calls(load, made.environment(), MANY, tmp_path)
    assert many - few < (MANY - FEW) / 100
