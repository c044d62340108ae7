"""Processes outside of runs: the arbiter finds them and their activity through NVML."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import machine_room
import pytest
from arbiters import processes, read_clock, run_in
from waiting import wait_until

from pyvgpu.machine import arbiter
from pyvgpu.simulation import simulator

MINUTE_NS = machine_room.MINUTE_NS
SLOT = 0


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        yield Path(name)
        for pid in processes(Path(name)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("t4", tmp_path / "machines")


@pytest.fixture
def run(place, machine):
    """Return a run with work on the machine and a running clock."""
    library = machine_room.driver_folder(machine) / "libnvidia-ml.so.1"
    nvml = arbiter.Nvml(library, machine.folder)
    uuid = machine.devices[0].uuid
    with run_in(place, uuid=uuid, nvml=nvml) as made, made.process(SLOT):  # work of the dead ends
        made.attendant.poll()
        made.work(SLOT, MINUTE_NS)
        wait_until(lambda: arbiter.serves(made.clock()))
        yield made


def says(run):
    """Return the clock's fields about other processes."""
    page = read_clock(run.clock())
    return page.outside, page.tenants, page.busy


@pytest.mark.slow
def test_a_process_outside_of_runs_takes_turns(run, machine):
    wait_until(lambda: says(run)[:2] == (0, 1))
    with machine_room.holder(machine, kernel_ns=MINUTE_NS) as held:
        wait_until(lambda: says(run) == (1, 1, 2))
        held.kill()
    wait_until(lambda: says(run)[:2] == (0, 1))


@pytest.mark.slow
def test_the_clock_of_a_concurrent_run_slows_down(run, machine):
    def grown():
        before = read_clock(run.clock())
        wait_until(lambda: read_clock(run.clock()).beat_ns > before.beat_ns + 100_000_000)
        after = read_clock(run.clock())
        return (after.share_ns - before.share_ns) / (after.beat_ns - before.beat_ns)

    with machine_room.holder(machine, kernel_ns=MINUTE_NS):
        wait_until(lambda: grown() < 0.9)  # the share of time by the model, not the elapsed time


@pytest.mark.slow
def test_a_process_of_a_run_is_not_an_outside_process(run, machine):
    with machine_room.holder(machine, kernel_ns=MINUTE_NS) as held:
        wait_until(lambda: says(run)[0] == 1)
        run.own(SLOT, held.pid)
        wait_until(lambda: says(run)[0] == 0)


def test_an_arbiter_continues_without_nvml(place, machine):
    nvml = arbiter.Nvml(Path("/nowhere/libnvidia-ml.so.1"))
    uuid = machine.devices[0].uuid
    with run_in(place, uuid=uuid, nvml=nvml) as run, run.process(SLOT):
        run.attendant.poll()
        run.work(SLOT, MINUTE_NS)
        wait_until(lambda: says(run) == (0, 1, 1))
