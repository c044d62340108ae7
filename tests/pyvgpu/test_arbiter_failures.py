"""Supervisors report correctly about arbiters that are killed or late.

Each mishap happens at the step that the test chooses: an audit hook acts before a step of the
supervisor, strace stops a program after one of its system calls.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import arbiters
import pytest
import stops
from arbiters import living, processes, read_clock, run_in
from waiting import wait_until

from pyvgpu import shim
from pyvgpu.machine import arbiter

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(arbiters.__file__).parent)}

# How a supervisor's hooks recognize its steps, and their actions.
STEPS = """
import contextlib, os, resource, signal, subprocess, sys
from pathlib import Path
import arbiters
from pyvgpu import shim
from pyvgpu.machine import arbiter
from waiting import wait_until

place, times = Path(sys.argv[1]), int(sys.argv[2])
acting = False

def kill_all():
    for pid in arbiters.processes(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not arbiters.processes(place))

def start_another():
    folder = run.made.folder.parent / f"arbiter-{os.geteuid()}"
    registries = arbiters.registries_in(place).paths
    subprocess.run([shim.arbiter_program(), folder, *registries], env={}, check=True)
    wait_until(lambda: arbiters.living(place))

def before(step, act):
    '''Act at the next *times* steps of that kind: a start, or the poll after a start.'''
    state = {"left": times, "started": False}
    def hook(event, details):
        global acting
        if acting or not state["left"]:
            return
        starts = event == "subprocess.Popen"
        polls = state["started"] and event == "open" and "/arbiter-" in str(details[0])
        state["started"] |= starts
        if {"start": starts, "poll": polls}[step]:
            state["started"] = False
            state["left"] -= 1
            acting = True
            try:
                act()
            finally:
                acting = False
    sys.addaudithook(hook)

def size_limit(size):
    '''Of the files of arbiters that are started: with 0 an arbiter dies before its report.'''
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

with arbiters.run_in(place) as run:
    def serves():
        return any(one.beats for one in arbiters.living(place)) and arbiter.serves(run.clock())
    def poll_until_it_serves():
        wait_until(lambda: run.attendant.poll() or serves())
"""

MISHAPS = {
    "killed before its report": """
    size_limit(0)
    for _ in range(times):
        run.attendant.poll()
    size_limit(resource.RLIM_INFINITY)
""",
    "killed before it is examined": """
    before("poll", kill_all)
""",
    "another comes first": """
    before("start", start_another)
""",
    "another comes first, and is killed": """
    before("start", start_another)
    before("poll", kill_all)
""",
    "late": """
    timeout, arbiter.TIMEOUT_SECONDS = arbiter.TIMEOUT_SECONDS, 0
    for _ in range(times):
        run.attendant.poll()
    arbiter.TIMEOUT_SECONDS = timeout
""",
}

# A supervisor that polls once.
POLL = """
import sys
from pathlib import Path
import arbiters
with arbiters.run_in(Path(sys.argv[1])) as run:
    run.attendant.poll()
"""


@pytest.fixture
def supervise(tmp_path):
    """Return a function that executes *body* in a supervisor with a run and returns its stderr."""

    def run(body, times=1):
        ran = subprocess.run(
            [sys.executable, "-c", STEPS + body, tmp_path, str(times)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stderr

    yield run
    end_all(tmp_path)


@pytest.fixture
def place(tmp_path):
    yield tmp_path
    end_all(tmp_path)


def end_all(place):
    for pid in processes(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes(place))


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("mishap", MISHAPS)
def test_failure_of_one_arbiter_is_not_reported_and_the_next_serves(supervise, mishap, times):
    assert supervise(MISHAPS[mishap] + "    poll_until_it_serves()\n", times) == ""


def test_arbiters_that_never_start_are_reported_once_and_the_next_serves(supervise):
    body = """
    size_limit(0)
    for _ in range(3 * arbiter.STARTS):
        run.attendant.poll()
    size_limit(resource.RLIM_INFINITY)
    poll_until_it_serves()
"""
    said = supervise(body)
    assert len(said.splitlines()) == 1
    assert f"{arbiter.STARTS} consecutive starts left no live arbiter" in said
    assert "less than its vcore" in said


def test_reason_for_a_failed_start_is_reported_immediately(supervise):
    body = """
    folder = run.made.folder.parent / f"arbiter-{os.geteuid()}"
    folder.write_text("in the way")
    run.attendant.poll()
    print("then", file=sys.stderr)
    folder.unlink()
    poll_until_it_serves()
"""
    first, *rest = supervise(body).splitlines()
    assert f"/arbiter-{os.geteuid()}: Not a directory" in first
    assert rest == ["then"]


@pytest.mark.slow
@stops.needs_strace
def test_suspended_supervisor_does_not_consider_the_arbiter_frozen(place, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "calls"
    with run_in(place) as run:
        run.attendant.poll()
        wait_until(lambda: arbiter.serves(run.clock()))
        (one,) = living(place)
        command = [sys.executable, "-c", POLL, place]
        file = one.folder / "arbiter"
        with stops.stopped_after("pread64", command, log, file, env=ENVIRONMENT) as other:
            beat = read_clock(file).beat_ns
            frozen_ns = arbiter.FROZEN_SECONDS * 1e9
            wait_until(lambda: read_clock(file).beat_ns > beat + frozen_ns)
            other.go_on()
            assert other.strace.wait() == 0
        assert [process.pid for process in living(place)] == [one.pid]


@stops.needs_strace
@pytest.mark.parametrize(
    ("calls", "path"),
    [
        pytest.param("mkdir,mkdirat", "{folder}", id="folder is there"),
        pytest.param("openat", "{folder}", id="folder is open"),
        pytest.param("openat", "arbiter", id="file is open"),
    ],
)
def test_arbiter_that_starts_while_another_ends_is_found(place, tmp_path_factory, calls, path):
    log = tmp_path_factory.mktemp("log") / "calls"
    with run_in(place) as run:
        run.attendant.poll()
        (old,) = living(place)
        registries = arbiters.registries_in(place).paths
        command = [shim.arbiter_program(), "--foreground", old.folder, *registries]
        with stops.stopped_after(calls, command, log, path.format(folder=old.folder)) as new:
            os.kill(old.pid, signal.SIGTERM)
            wait_until(lambda: old.pid not in processes(place))
            new.go_on()
            wait_until(lambda: [process.pid for process in living(place)] == [new.pid])
            os.kill(new.pid, signal.SIGKILL)


@stops.needs_strace
def test_abandoned_arbiter_starts(place, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "calls"
    with run_in(place) as run:
        run.attendant.poll()  # its link is why the next arbiter stays
        wait_until(lambda: arbiter.serves(run.clock()))
        (old,) = living(place)
        end_all(place)
        run.clock().readlink().unlink()
        command = [shim.arbiter_program(), old.folder, *arbiters.registries_in(place).paths]
        with stops.stopped_after("setsid", command, log) as begun:
            os.kill(begun.first, signal.SIGKILL)
            wait_until(lambda: not Path(f"/proc/{begun.first}").exists())
            begun.go_on()
            wait_until(lambda: arbiter.serves(run.clock()))
            end_all(place)
