"""The load generator measures each figure on the bare driver and through the shim alike."""

import json
import subprocess
from pathlib import Path

import pytest
from machine_room import driver_folder
from shim_room import GIB, room

from pyvgpu.simulation import simulator

FIGURES = (
    "pair",
    "pair-live",
    "pair-any",
    "pair-crowd",
    "pair-async",
    "pool-quarter",
    "pool-written",
    "mapping",
    "refusal",
    "memory-info",
    "nvml-memory",
    "process-list",
    "lookup",
    "launch",
    "launch-threads",
    "untouched",
    "start",
    "init-crowd",
)
QUOTA = 16 * GIB  # enough for the eight contexts of pair-crowd


@pytest.fixture(scope="module")
def load():
    found = Path(__file__).parents[2].glob("build/*/csrc/bench/load")
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module", params=["bare", "shim"])
def meeting(request, tmp_path_factory):
    """The environment of one side, and the total memory that it reports."""
    place = tmp_path_factory.mktemp("bench")
    machine = simulator.open_machine("h100", place / "machines", mode="free")
    with room(place, machine, vmemory=QUOTA) as made:
        environment = made.environment()
        if request.param == "bare":
            environment["LD_LIBRARY_PATH"] = str(driver_folder(machine))
        total = machine.devices[0].memory_bytes if request.param == "bare" else QUOTA
        yield environment, total


def ask(load, environment, *arguments):
    done = subprocess.run(
        [load, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_is_a_distribution(load, meeting, figure):
    line = ask(load, meeting[0], figure, "16")
    assert line["figure"] == figure
    assert line["count"] == 16
    assert 0 <= line["p50"] <= line["p99"] <= line["max"]
    assert line["max"] > 0


@pytest.mark.parametrize("figure", ["pair", "pair-crowd", "launch-threads", "process-list"])
def test_one_phase_is_measured_per_input_line(load, meeting, figure):
    done = subprocess.run(
        [load, figure, "64", "by-lines"],
        env=meeting[0],
        input="\n" * 3,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["figure"] for line in lines] == [figure] * 3
    assert all(0 < line["p50"] <= line["p99"] and line["count"] == 64 for line in lines)


def test_unhooked_functions_are_the_drivers_own(load, meeting):
    line = ask(load, meeting[0], "elsewhere")
    assert line["count"] > 300
    assert line["elsewhere"] == 0


def test_footprint_counts_this_process(load, meeting):
    line = ask(load, meeting[0], "footprint", "100")
    assert 0 < line["library"] < line["resident"]
    assert line["threads"] == 1


def test_total_memory_distinguishes_the_sides(load, meeting):
    environment, total = meeting
    assert ask(load, environment, "total")["total"] == total


def test_unknown_figure_is_refused_with_the_known_ones(load):
    done = subprocess.run([load, "pairs"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "load pair 100000" in done.stderr
    assert "refusal" in done.stderr


def test_program_without_a_driver_fails(load, tmp_path):
    done = subprocess.run(
        [load, "pair", "16"],
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "libcuda.so.1" in done.stderr
