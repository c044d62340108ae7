"""The agent's arbiter keeps a clock for each grant, and is replaced when it is killed."""

import contextlib
import logging
import os
import signal
import subprocess
import sys

import arbiters
import pytest
from waiting import wait_until

from pyvgpu import device, names, quota, region, share
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import arbiter_clocks, cdi_edits
from pyvgpu.machine import arbiter

MODEL = device.Device(arbiters.UUIDS[0], 0, "model", 8 * arbiters.GIB, 256 << 20)


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "grants"
    folder.mkdir()
    folder.chmod(0o1700)
    return folder


@contextlib.contextmanager
def living(registry):
    """Create a grant's folder with the region of a container that runs until the block ends."""
    made = registry / grants.new_id()
    (made / cdi_edits.CLOCK_FOLDER).mkdir(parents=True)
    folder = os.open(made, os.O_RDONLY)
    held = region.create(
        folder, "1.2", [share.Share(MODEL, 30, arbiters.GIB, quota.TimePolicy.HARD)]
    )
    os.close(folder)
    try:
        yield made
    finally:
        os.close(held)


@pytest.fixture
def grant(registry):
    with living(registry) as made:
        yield made


def pids(registry):
    return {process.pid for process in arbiter.find([registry])}


def polled(kept, wanted, true):
    """Run the agent's poll until *true* holds."""
    wait_until(lambda: kept.poll(wanted) or true())


def test_grant_has_a_running_clock_even_after_the_arbiter_is_killed(registry, grant):
    kept = arbiter_clocks.Clocks(registry, registry.parent / "none")
    clock = grant / cdi_edits.CLOCK_FOLDER / "0"
    try:
        polled(kept, {grant.name: 1}, lambda: arbiter.serves(clock))
        (first,) = arbiter.find([registry])
        os.kill(first.pid, signal.SIGKILL)
        polled(
            kept, {grant.name: 1}, lambda: pids(registry) - {first.pid} and arbiter.serves(clock)
        )
    finally:
        kept.stop()
    assert not arbiter.find([registry])


def test_first_grant_after_idle_time_finds_a_running_arbiter(registry, grant, monkeypatch):
    monkeypatch.setattr(arbiter_clocks, "IDLE_SECONDS", 600.0)
    kept = arbiter_clocks.Clocks(registry, registry.parent / "none")
    clock = grant / cdi_edits.CLOCK_FOLDER / "0"
    try:
        polled(kept, {}, lambda: any(process.beats for process in arbiter.find([registry])))
        kept.poll({})  # it finds the arbiter
        (first,) = arbiter.find([registry])
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: not arbiter.find([registry]))
        for _ in range(20):
            kept.poll({})
        assert not arbiter.find([registry])  # no grant needs one
        polled(kept, {grant.name: 1}, lambda: arbiter.serves(clock))
    finally:
        kept.stop()


def test_next_agent_adopts_the_arbiter_of_a_killed_one(registry, grant):
    killed, later = (arbiter_clocks.Clocks(registry, registry.parent / "none") for _ in range(2))
    clock = grant / cdi_edits.CLOCK_FOLDER / "0"
    try:
        polled(killed, {grant.name: 1}, lambda: arbiter.serves(clock))
        (first,) = arbiter.find([registry])
        polled(later, {grant.name: 1}, lambda: arbiter.serves(clock))
        assert pids(registry) == {first.pid}
        later.stop()
        wait_until(lambda: not arbiter.find([registry]))
    finally:
        killed.stop()


AGENT = """
import pathlib, sys, time
from pyvgpu.machine import arbiter
from pyvgpu.deviceplugin.containers import arbiter_clocks
registry = pathlib.Path(sys.argv[1])
kept = arbiter_clocks.Clocks(registry, registry.parent / "none")
while True:
    kept.poll({})
    print(*(process.pid for process in arbiter.find([registry]) if process.beats), flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def left(registry):
    """Return a function that leaves an arbiter behind, by killing its agent."""

    def leave():
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, registry], stdout=subprocess.PIPE, text=True
        )
        with agent:
            while not agent.stdout.readline().strip():
                assert agent.poll() is None
            agent.kill()

    yield leave
    for process in arbiter.find([registry]):
        os.kill(process.pid, signal.SIGKILL)


def test_orphaned_arbiter_without_containers_exits(registry, left):
    left()
    wait_until(lambda: not arbiter.find([registry]))


@pytest.mark.slow
def test_orphaned_arbiter_keeps_running_for_live_containers(registry, left):
    def clock(grant):
        return registry / f"{names.ARBITER_FOLDER}{os.geteuid()}" / f"{grant.name}.0"

    with living(registry) as one:
        left()
        wait_until(lambda: arbiter.serves(clock(one)))
        (it,) = arbiter.find([registry])
        with living(registry) as other:
            wait_until(lambda: arbiter.serves(clock(other)))
        wait_until(lambda: not clock(other).exists())  # once it has looked for its containers
        with living(registry) as later:
            wait_until(lambda: arbiter.serves(clock(later)))
        assert pids(registry) == {it.pid}
    wait_until(lambda: not arbiter.find([registry]))


def test_removed_grant_does_not_stop_the_arbiter(registry, grant):
    kept = arbiter_clocks.Clocks(registry, registry.parent / "none")
    clock = grant / cdi_edits.CLOCK_FOLDER / "0"
    try:
        polled(kept, {"0" * 16: 2, grant.name: 1}, lambda: arbiter.serves(clock))
    finally:
        kept.stop()


def test_arbiter_that_fails_to_start_is_not_retried_at_once(registry, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(
        arbiter_clocks, "_LEAST_SECONDS", 600.0
    )  # a failed start, however late the
    monkeypatch.setattr(arbiter_clocks, "_AGAIN_SECONDS", 600.0)  # test sees it
    (registry / f"arbiter-{os.geteuid()}").write_text("in the way")
    kept = arbiter_clocks.Clocks(registry, registry.parent / "none")
    try:
        polled(kept, {}, lambda: "the arbiter exits with" in caplog.text)
        for _ in range(20):
            kept.poll({})
    finally:
        kept.stop()
    assert caplog.text.count("started the arbiter") == 1
    assert caplog.text.count("the arbiter exits with") == 1
