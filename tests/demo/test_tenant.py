"""The tenant is an ordinary CUDA program: it runs under a quota and on the bare driver alike."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import machine_room
import pytest

from pyvgpu import shim
from pyvgpu.simulation import simulator

MIB = 1 << 20
PYVGPU = Path(sys.executable).with_name("pyvgpu")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(simulator.BASE_VARIABLE, str(tmp_path / "machines"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def tenant(*words, **options):
    """Run the tenant under 2 GiB of a T4 and return its events and exit code."""
    run = [PYVGPU, "run", "--simulate", "t4", "--vmemory", "2GiB", "--", shim.tenant_program()]
    if "input" not in options:
        options = {"stdin": subprocess.DEVNULL, **options}
    ran = subprocess.run(
        [*run, *words], capture_output=True, text=True, timeout=60, check=False, **options
    )
    return [json.loads(line) for line in ran.stdout.splitlines()], ran.returncode


@pytest.mark.slow
def test_steady_verifies_every_byte(place):
    (start, first), code = tenant("steady", "12MiB", "0")
    assert (start["event"], start["mode"], start["total"]) == ("start", "steady", 2048 * MIB)
    assert start["device"] == "pyvgpu simulated T4"
    assert first == {"event": "round", "number": 1, "bytes": 12 * MIB, "wrong": 0}
    assert code == 0


@pytest.mark.slow
def test_steady_ends_when_standard_input_closes(place):
    events, code = tenant("steady", "12MiB")
    assert [event["event"] for event in events] == ["start", "round"]
    assert code == 0


def test_refused_steady_names_the_call(place):
    events, code = tenant("steady", "3GiB")
    assert events[1:] == [
        {
            "event": "failed",
            "call": "cuMemAlloc",
            "result": 2,
            "name": "CUDA_ERROR_OUT_OF_MEMORY",
        }
    ]
    assert code == 1


def test_spin_reports_completed_kernels_and_time(place):
    reading, writing = os.pipe()
    command = [PYVGPU, "run", "--simulate", "t4", "--vmemory", "2GiB", "--"]
    with subprocess.Popen(
        [*command, shim.tenant_program(), "spin", "500"], stdin=reading, stdout=subprocess.PIPE
    ) as process:
        os.close(reading)
        start, *reports = (json.loads(process.stdout.readline()) for _ in range(4))
        os.close(writing)
        assert process.wait(30) == 0
    assert (start["event"], start["mode"]) == ("start", "spin")
    assert all(report["ns"] == 500_000 * report["kernels"] for report in reports)
    assert 0 < reports[1]["kernels"] < reports[2]["kernels"]
    assert reports[0]["at"] < reports[1]["at"] < reports[2]["at"] <= time.monotonic()


def test_grow_is_refused_at_its_quota_and_continues(place):
    reading, writing = os.pipe()
    command = [PYVGPU, "run", "--simulate", "t4", "--vmemory", "2GiB", "--"]
    with subprocess.Popen(
        [*command, shim.tenant_program(), "grow", "512MiB"], stdin=reading, stdout=subprocess.PIPE
    ) as process:
        os.close(reading)
        events = []
        while [event["event"] for event in events].count("refused") < 2:
            events.append(json.loads(process.stdout.readline()))
        os.close(writing)
        assert process.wait(30) == 0
    assert [event["bytes"] // MIB for event in events[1:]] == [512, 1024, 1536, 1536, 1536]
    assert events[-1]["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert events[-1]["free"] == (2048 - 104 - 1536) * MIB


def test_hold_allocates_once(place):
    events, code = tenant("hold", "1GiB")
    assert events[1:] == [{"event": "held", "bytes": 1024 * MIB}]
    assert code == 0


def test_notebook_works_when_it_is_asked_to(place):
    events, code = tenant("notebook", "12MiB", input="0\n100\n")
    assert events[1:] == [
        {"event": "held", "bytes": 12 * MIB},
        {"event": "cell", "bytes": 12 * MIB, "wrong": 0},
        {"event": "cell", "bytes": 12 * MIB, "wrong": 0},
    ]
    assert code == 0


def test_without_the_shim_it_has_the_whole_device(place):
    machine = simulator.open_machine("t4")
    written = machine_room.run(machine, str(shim.tenant_program()), "steady", "12MiB", "0")
    start, first = map(json.loads, written.splitlines())
    assert start["total"] == machine.devices[0].memory_bytes
    assert first["wrong"] == 0


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["steady"],
        ["grow", "0"],
        ["grow", "-1"],
        ["grow", "1MB"],
        ["hold", "99999999999999999999"],
        ["hold", "99999999999GiB"],
        ["steady", "1MiB", "long"],
        ["notebook", "0"],
        ["dance", "1MiB"],
    ],
)
def test_invalid_arguments(place, words):
    assert tenant(*words) == ([], 2)
