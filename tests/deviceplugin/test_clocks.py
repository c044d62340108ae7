"""The agent's arbiter keeps a clock for each grant, and another does when it is killed."""

import contextlib
import logging
import os
import signal
import subprocess
import sys

import arbiters
import pytest
from waiting import wait_until

from pyvgpu import arbiter, device, names, quota, region, share
from pyvgpu.deviceplugin import clocks, containers, grants

MODEL = device.Device(arbiters.UUIDS[0], 0, "model", 8 * arbiters.GIB, 256 << 20)


@pytest.fixture
def book(tmp_path):
    folder = tmp_path / "grants"
    folder.mkdir()
    folder.chmod(0o1700)
    return folder


@contextlib.contextmanager
def living(book):
    """Make a grant's folder, with the region of a container that lives until the block ends."""
    made = book / grants.new_id()
    (made / containers.CLOCK_FOLDER).mkdir(parents=True)
    folder = os.open(made, os.O_RDONLY)
    held = region.create(folder, "1.2", [share.Share(MODEL, 30, arbiters.GIB, quota.Policy.HARD)])
    os.close(folder)
    try:
        yield made
    finally:
        os.close(held)


@pytest.fixture
def grant(book):
    with living(book) as made:
        yield made


def pids(book):
    return {it.pid for it in arbiter.find([book])}


def looked(kept, wanted, true):
    """Let the agent look until something is true."""
    wait_until(lambda: kept.look(wanted) or true())


def test_a_grant_has_a_clock_that_goes_and_again_when_the_arbiter_is_killed(book, grant):
    kept = clocks.Clocks(book, book.parent / "none")
    clock = grant / containers.CLOCK_FOLDER / "0"
    try:
        looked(kept, {grant.name: 1}, lambda: arbiter.serves(clock))
        (first,) = arbiter.find([book])
        os.kill(first.pid, signal.SIGKILL)
        looked(kept, {grant.name: 1}, lambda: pids(book) - {first.pid} and arbiter.serves(clock))
    finally:
        kept.stop()
    assert not arbiter.find([book])


def test_who_comes_first_after_nobody_needed_the_arbiter_finds_one_that_goes(
    book, grant, monkeypatch
):
    monkeypatch.setattr(clocks, "IDLE_SECONDS", 600.0)
    kept = clocks.Clocks(book, book.parent / "none")
    clock = grant / containers.CLOCK_FOLDER / "0"
    try:
        looked(kept, {}, lambda: any(it.beats for it in arbiter.find([book])))
        kept.look({})  # which sees it
        (first,) = arbiter.find([book])
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: not arbiter.find([book]))
        for _ in range(20):
            kept.look({})
        assert not arbiter.find([book])  # for nobody
        looked(kept, {grant.name: 1}, lambda: arbiter.serves(clock))
    finally:
        kept.stop()


def test_an_agent_that_comes_after_one_that_was_killed_takes_its_arbiter(book, grant):
    killed, later = (clocks.Clocks(book, book.parent / "none") for _ in range(2))
    clock = grant / containers.CLOCK_FOLDER / "0"
    try:
        looked(killed, {grant.name: 1}, lambda: arbiter.serves(clock))
        (first,) = arbiter.find([book])
        looked(later, {grant.name: 1}, lambda: arbiter.serves(clock))
        assert pids(book) == {first.pid}
        later.stop()
        wait_until(lambda: not arbiter.find([book]))
    finally:
        killed.stop()


AGENT = """
import pathlib, sys, time
from pyvgpu import arbiter
from pyvgpu.deviceplugin import clocks
book = pathlib.Path(sys.argv[1])
kept = clocks.Clocks(book, book.parent / "none")
while True:
    kept.look({})
    print(*(it.pid for it in arbiter.find([book]) if it.beats), flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def left(book):
    """Return what leaves an arbiter behind, by an agent that is killed."""

    def leave():
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, book], stdout=subprocess.PIPE, text=True
        )
        with agent:
            while not agent.stdout.readline().strip():
                assert agent.poll() is None
            agent.kill()

    yield leave
    for it in arbiter.find([book]):
        os.kill(it.pid, signal.SIGKILL)


def test_an_arbiter_whose_agent_was_killed_ends_when_it_has_no_container(book, left):
    left()
    wait_until(lambda: not arbiter.find([book]))


def test_an_arbiter_whose_agent_was_killed_goes_on_for_containers_that_live(book, left):
    def clock(grant):
        return book / f"{names.ARBITER_FOLDER}{os.geteuid()}" / f"{grant.name}.0"

    with living(book) as one:
        left()
        wait_until(lambda: arbiter.serves(clock(one)))
        (it,) = arbiter.find([book])
        with living(book) as other:
            wait_until(lambda: arbiter.serves(clock(other)))
        wait_until(lambda: not clock(other).exists())  # when it looked who needs it
        with living(book) as later:
            wait_until(lambda: arbiter.serves(clock(later)))
        assert pids(book) == {it.pid}
    wait_until(lambda: not arbiter.find([book]))


def test_a_grant_that_has_gone_is_no_reason_to_stop(book, grant):
    kept = clocks.Clocks(book, book.parent / "none")
    clock = grant / containers.CLOCK_FOLDER / "0"
    try:
        looked(kept, {"0" * 16: 2, grant.name: 1}, lambda: arbiter.serves(clock))
    finally:
        kept.stop()


def test_an_arbiter_that_cannot_begin_is_not_tried_all_the_time(book, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(clocks, "_LEAST_SECONDS", 600.0)  # it has not begun well, however late
    monkeypatch.setattr(clocks, "_AGAIN_SECONDS", 600.0)  # that is seen
    (book / f"arbiter-{os.geteuid()}").write_text("in the way")
    kept = clocks.Clocks(book, book.parent / "none")
    try:
        looked(kept, {}, lambda: "the arbiter ends with" in caplog.text)
        for _ in range(20):
            kept.look({})
    finally:
        kept.stop()
    assert caplog.text.count("started the arbiter") == 1
    assert caplog.text.count("the arbiter ends with") == 1
