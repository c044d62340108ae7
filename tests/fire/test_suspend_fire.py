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
import pytest
from runner import PYVGPU, Runner
from waiting import wait_until

from pyvgpu.machine import reservations

pytestmark = pytest.mark.fire

OPERATIONS = int(os.environ.get("PYVGPU_FIRE_OPERATIONS", "20000"))
ROUNDS = max(4, OPERATIONS // 100_000)
SEED = int(os.environ.get("PYVGPU_FIRE_SEED", "1"))
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
            wish, blow = pick.choice(("suspend", "resume")), pick.choice("-cdt")
            with subprocess.Popen(
                [PYVGPU, wish, name],
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
