"""Suspension under fire: commands, callers of the driver and programs are killed and stopped."""

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import checkpoints
import driver_memory
import pytest
from runner import PYVGPU, Runner
from waiting import wait_until

from pyvgpu.machine import process_identity, reservations
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.fire

OPERATIONS = int(os.environ.get("PYVGPU_FIRE_OPERATIONS", "20000"))
ROUNDS = max(4, OPERATIONS // 100_000)
SEED = int(os.environ.get("PYVGPU_FIRE_SEED", "1"))
SLOW = "pyvgpu-simulated-machine 1\nmachine=h100\ncheckpoint_percent=1\nrestore_percent=1\n"
# A child that uses the device all the time, and shows in a file that it goes on.
WORKER = (
    checkpoints.SERVER
    + checkpoints.TARGET
    + """
context(); p = alloc(1 << 29); fill(p)
with open(sys.argv[1], "r+b", buffering=0) as file:
    for number in range(1 << 60):
        assert is_intact(p)
        os.pwrite(file.fileno(), b"%20d" % number, 0)
        time.sleep(0.01)
"""
)
PARENT = checkpoints.SERVER + checkpoints.TARGET + "import subprocess\n" + checkpoints.LOOP
SOURCE = checkpoints.SERVER + checkpoints.TARGET + checkpoints.LOOP


@pytest.fixture
def runner():
    """Return a runner with folders of its own."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        yield Runner(Path(name))


def suspension_of(name):
    (found,) = [run for run in reservations.Registries().live() if run.holder.name == name]
    return found.limits.suspension


def callers(supervisor):
    """Return the pids of the supervisor's children that call the driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"PPid:\t{supervisor}\n" in (path / "status").read_text()
            if is_child and b"checkpoint_calls" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def is_settled(name):
    found = suspension_of(name)
    return found.suspended or not found.gated


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_is_always_running_or_suspended_and_no_byte_is_lost(runner):
    pick, name = random.Random(SEED), f"fire-{secrets.token_hex(4)}"
    with runner.started(
        *("--name", name, "--vmemory", "4GiB"), "--", sys.executable, "-c", SOURCE
    ) as process:
        lines = checkpoints.Lines(process)
        lines.send("context(); p = alloc(1 << 30); fill(p); answer(os.getpid())")
        program = lines.answer()
        wait_until(lambda: suspension_of(name) is not None)
        for _ in range(ROUNDS):
            verb, blow = pick.choice(("suspend", "resume")), pick.choice("-cdt")
            with subprocess.Popen(
                [PYVGPU, verb, name],
                env=runner.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as command:
                time.sleep(pick.uniform(0, 2))
                if blow == "c":
                    command.kill()
                elif blow == "d":
                    for pid in callers(process.pid):
                        os.kill(pid, signal.SIGKILL)
                elif blow == "t":
                    os.kill(program, signal.SIGSTOP)
                    time.sleep(pick.uniform(0, 1))
                    os.kill(program, signal.SIGCONT)
            wait_until(lambda: is_settled(name))
        wait_until(
            lambda: (
                subprocess.run(
                    [PYVGPU, "resume", name], env=runner.environment, capture_output=True
                ).returncode
                == 0
            )
        )
        assert lines.ask("[is_intact(p), alloc(1 << 20) is not None]") == [True, True]
        assert not suspension_of(name).gated
    wait_until(lambda: not [x for x in reservations.Registries().live() if x.holder.name == name])


def children_named(parent, name):
    """Return the pids of the children of a process that have this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            if f"Name:\t{name}\n" in text and f"PPid:\t{parent}\n" in text:
                found.append(int(path.parent.name))
    return found


def live(name):
    return [run for run in reservations.Registries().live() if run.holder.name == name]


def command(runner, *arguments):
    return subprocess.Popen(
        [PYVGPU, *arguments],
        env=runner.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def goes_on(path):
    """Return whether the worker makes calls of the driver: none of them waits forever."""
    before = path.read_bytes()
    wait_until(lambda: path.read_bytes() != before)
    return True


def kill_supervisor(runner, name, count, pick):
    """Kill the supervisor of a run that is just being moved; return what became of its worker."""
    count.write_bytes(b" " * 20)
    verb, with_janitor = pick.choice(("suspend", "resume")), pick.random() < 0.5
    options = ("--name", name, "--vmemory", "4GiB")
    with runner.started(*options, "--", sys.executable, "-c", PARENT) as process:
        lines = checkpoints.Lines(process)
        arguments = [sys.executable, "-c", WORKER, str(count)]
        lines.send("context(); p = alloc(1 << 29); fill(p)")
        lines.send(f"c = subprocess.Popen({arguments!r}, stdin=-3); answer(c.pid)")
        worker = lines.answer()
        began = process_identity.began(worker)
        assert goes_on(count)
        if verb == "resume":
            assert command(runner, "suspend", name).wait(120) == 0
        with command(runner, verb, name):
            time.sleep(pick.uniform(0, 4))
            (janitor,) = children_named(process.pid, "pyvgpu-janitor")
            if with_janitor:
                os.kill(janitor, signal.SIGKILL)
            process.kill()
            process.wait(120)
        assert runner("--vmemory", "1GiB", "--", "true").returncode == 0
        if [run.limits.suspension.gated for run in live(name)] == [False]:
            assert goes_on(count)
            os.kill(worker, signal.SIGKILL)
            outcome = "goes on"
        else:
            wait_until(lambda: process_identity.began(worker) != began)
            outcome = "ended"
        wait_until(lambda: not live(name))
    return outcome


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_process_stays_locked_when_its_supervisor_is_killed_at_any_moment(runner, tmp_path):
    """The program dies with its supervisor; a worker that it started goes on, or is ended."""
    pick = random.Random(SEED)
    path = tmp_path / "slow.machine"
    path.write_text(SLOW)
    runner.machine = str(path)
    outcomes = set()
    for number in range(ROUNDS):
        name = f"fire-{secrets.token_hex(4)}"
        outcomes.add(kill_supervisor(runner, name, tmp_path / f"count-{number}", pick))
        (folder,) = [x for x in runner.machines.iterdir() if (x / "machine.conf").exists()]
        assert driver_memory.used_bytes(simulator.read_machine(folder)) == 0
    assert "ended" in outcomes
