"""`pyvgpu run --oversubscribe`: idle runs make room, and come back when they want to work."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import checkpoints
import pytest
from waiting import WHOLE, wait_until

from pyvgpu import names
from pyvgpu.machine import reservations, tenant_record
from pyvgpu.run import run_metrics, runs
from pyvgpu.simulation import simulator

from .conftest import reservation_folders
from .test_suspend import HOLDING, SLOW, done, is_gated, machine_of, pyvgpu, refused, tenant

NOT_READY = 600
LITTLE = "context(); p = alloc(1 << 24); fill(p); answer(p > 0)"
WORK = "spin(1_000_000); check(cuda.cuCtxSynchronize())"
QUICK = ("--oversubscribe", "--idle", "1", "--slice", "5", "--moves", "100")


def crowded(runner, name, *options, size="50GiB"):
    return tenant(runner, name, *QUICK, "--vmemory", size, *options)


def state(runner, name):
    return runner.listed(name)["state"]


@contextlib.contextmanager
def waiting_beside_work(runner, name):
    """Run *name*, which works without a pause; yield the process of a run that waits for room."""
    with crowded(runner, name) as working:
        working.send("context(); answer(1)")
        assert working.answer() == 1
        working.send(f"while True: {WORK}")
        second = f"{name}-b"
        options = ("--name", second, *QUICK, "--vmemory", "50GiB")
        with runner.started(*options, "--", "true") as waiting:
            wait_until(lambda: reservation_folders(second) and state(runner, second) == "waiting")
            yield waiting


def test_an_idle_run_makes_room_and_comes_back_when_it_wants_to_work(runner, name):
    with crowded(runner, name) as first:
        first.send(HOLDING)
        assert first.answer() is True
        with crowded(runner, f"{name}-b") as second:
            assert state(runner, name) == "suspended"
            entry = runner.listed(name)["oversubscription"]
            assert (entry["suspensions"], entry["resumptions"]) == (1, 0)
            second.send("context(); p = alloc(1 << 30); answer(p is not None)")
            assert second.answer() is True
            assert first.ask("is_intact(p)") is True
            assert state(runner, name) == "running"
            wait_until(lambda: state(runner, f"{name}-b") == "suspended")
        wait_until(lambda: reservation_folders(f"{name}-b") == [])


def test_a_run_that_works_is_not_suspended_for_a_start(runner, name):
    with crowded(runner, name) as first:
        first.send("context(); answer(1)")
        assert first.answer() == 1
        first.send(f"while True: {WORK}")
        said = runner(
            "--name", f"{name}-b", *QUICK, "--vmemory", "50GiB", "--wait", "4", "--", "true"
        )
        assert "no room within 4 s (--wait)" in refused(said)
        assert state(runner, name) == "running"
        assert runner.listed(name)["oversubscription"]["suspensions"] == 0
        assert reservation_folders(f"{name}-b") == []


def shares(name):
    """Return the metrics of a run, by the ends of their names."""
    text = run_metrics.text(runs.RunWatch().see(runs.sample(reservations.Registries()))).decode()
    found = re.findall(rf'^pyvgpu_run_(\w+){{.*run="{name}",.*}} (\S+)$', text, re.MULTILINE)
    return {metric: float(value) for metric, value in found}


@pytest.mark.slow
def test_two_runs_that_always_work_take_turns(runner, name):
    with crowded(runner, name) as first:
        first.send(LITTLE)
        assert first.answer() is True
        with crowded(runner, f"{name}-b") as second:
            second.send(LITTLE)
            assert second.answer() is True
            for each in (first, second):
                each.send(f"while is_intact(p): {WORK}")

            def moves():
                both = (runner.listed(x)["oversubscription"] for x in (name, f"{name}-b"))
                return [x[key] for x in both for key in ("suspensions", "resumptions")]

            wait_until(lambda: min(moves()) >= 2, 240)  # four moves, each after a slice
            assert [x.process.poll() for x in (first, second)] == [None, None]


def test_reservations_stay_within_the_ratio(runner, name):
    with crowded(runner, name), crowded(runner, f"{name}-b"):
        said = runner("--name", f"{name}-c", *QUICK, "--vmemory", "70GiB", "--", "true")
        assert "--oversubscribe 2 allows 2 times as much for all" in refused(said)


def test_a_signal_ends_the_wait_for_room(runner, name):
    with waiting_beside_work(runner, name) as waiting:
        wait_until(lambda: shares(name)["waiting_seconds"] == 0)
        wait_until(lambda: shares(f"{name}-b")["waiting_seconds"] > 0)
        assert shares(f"{name}-b")["moved_to_device_bytes_total"] == 0
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(WHOLE) == -signal.SIGTERM
        assert reservation_folders(f"{name}-b") == []


def test_a_wait_for_room_that_is_stopped_goes_on(runner, name):
    with waiting_beside_work(runner, name) as waiting:
        for _ in range(3):
            os.kill(waiting.pid, signal.SIGSTOP)
            wait_until(lambda: "T (stopped)" in Path(f"/proc/{waiting.pid}/status").read_text())
            time.sleep(0.5)  # longer than it waits for signals at a time
            os.kill(waiting.pid, signal.SIGCONT)
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.5)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(WHOLE) == -signal.SIGTERM


def test_a_run_that_a_user_suspended_is_not_resumed_by_the_policy(runner, name):
    with crowded(runner, name) as first:
        first.send(HOLDING)
        assert first.answer() is True
        done(pyvgpu(runner, "suspend", name))
        first.send("answer(is_intact(p))")
        with crowded(runner, f"{name}-b"):
            assert runner.listed(name)["oversubscription"]["suspensions"] == 0
        assert state(runner, name) == "suspended"
        done(pyvgpu(runner, "resume", name))
        assert first.answer() is True


def test_a_run_that_a_user_resumes_without_room_takes_its_turn(runner, name):
    with crowded(runner, name) as first:
        first.send(HOLDING)
        assert first.answer() is True
        done(pyvgpu(runner, "suspend", name))
        with crowded(runner, f"{name}-b") as second:
            second.send(HOLDING)
            assert second.answer() is True
            said = done(pyvgpu(runner, "resume", name))
            assert said.startswith(f"{name}: has no room now, and is resumed in its turn once it")
            assert f"the rest is reserved: {name}-b 50GiB" in said
            assert first.ask("is_intact(p)") is True
            assert state(runner, f"{name}-b") == "suspended"


def record_of(name):
    (folder,) = reservation_folders(name)
    return folder, tenant_record.load((folder / names.TENANT_FILE).read_bytes())


@pytest.mark.slow
def test_a_user_suspends_a_run_that_the_policy_is_just_suspending(runner, name, tmp_path):
    machine = tmp_path / "slow.machine"
    machine.write_text(SLOW)
    runner.machine = str(machine)
    with crowded(runner, name) as first:
        first.send(HOLDING)
        assert first.answer() is True
        with runner.started(
            "--name", f"{name}-b", *QUICK, "--vmemory", "50GiB", "--", "sleep", "1"
        ) as second:
            wait_until(lambda: is_gated(name))
            said = done(pyvgpu(runner, "suspend", name, "--keep"))
            assert said.endswith(("its reservation is kept\n", "its reservation is kept now\n"))
            assert record_of(name)[1].is_manual
            second.send_signal(signal.SIGTERM)
            second.wait(WHOLE)
        first.send("answer(is_intact(p))")
        assert state(runner, name) == "suspended"
        done(pyvgpu(runner, "resume", name))
        assert first.answer() is True


def test_a_move_whose_end_was_not_recorded_does_not_last(runner, name):
    with crowded(runner, name):
        folder, record = record_of(name)
        with reservations.Registries().frozen():
            moving = dataclasses.replace(record, moving_since=record.since)
            reservations.write_record(folder, moving)
        wait_until(lambda: not record_of(name)[1].moving_since)


def test_a_run_that_waits_for_room_is_not_suspended(runner, name):
    with waiting_beside_work(runner, name) as waiting:
        for command in ("suspend", "resume"):
            said = refused(pyvgpu(runner, command, f"{name}-b"))
            assert "has not started yet: it waits for room" in said
        waiting.send_signal(signal.SIGTERM)
        waiting.wait(WHOLE)


def test_without_host_memory_no_run_is_suspended(runner, name):
    with crowded(runner, name, "--host-memory", "1GiB") as first:
        first.send(HOLDING)
        assert first.answer() is True
        said = runner(
            "--name", f"{name}-b", *QUICK, "--vmemory", "50GiB", "--wait", "4", "--", "true"
        )
        assert "no room within 4 s (--wait)" in refused(said)
        listed = runner.listed(name)["oversubscription"]
        assert "--host-memory allows" in listed["refusal"]
        assert listed["host_memory_bytes"] == 1 << 30
        assert first.ask("is_intact(p)") is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--idle", "9"], "--idle: needs --oversubscribe", id="alone"),
        pytest.param(
            ["--oversubscribe", "--sharing", "mps"],
            "--oversubscribe and --sharing mps: must not both be given",
            id="mps",
        ),
        pytest.param(["--oversubscribe=1"], "must be a ratio above 1 and up to 16", id="ratio"),
        pytest.param(["--oversubscribe", "--idle=0"], "--idle '0': must be 1 to", id="idle"),
        pytest.param(["--oversubscribe", "--wait=x"], "--wait 'x': must be 0 to", id="wait"),
    ],
)
def test_invalid_options_are_refused(runner, options, said):
    assert said in refused(runner(*options, "--", "true"), 64)


@pytest.mark.slow
def test_a_resumption_that_the_driver_refuses_is_tried_again(runner, name):
    with crowded(runner, name) as first:
        first.send(HOLDING)
        assert first.answer() is True
        with crowded(runner, f"{name}-b"):
            assert state(runner, name) == "suspended"
            simulator.set_faults(
                machine_of(runner), f"call cuCheckpointProcessRestore 1 {NOT_READY}"
            )
            first.send("answer(is_intact(p))")
            wait_until(lambda: runner.listed(name)["oversubscription"]["refusal"])
            assert "returned error 600" in runner.listed(name)["oversubscription"]["refusal"]
            simulator.set_faults(machine_of(runner))
            assert first.answer() is True
            wait_until(lambda: state(runner, name) == "running")


@pytest.mark.slow
def test_a_run_whose_supervisor_is_stopped_holds_up_no_other(runner, name):
    """As by Ctrl-Z: it would be the first to be suspended, and only its supervisor can do that."""
    with crowded(runner, name, size="30GiB") as first:
        first.send(HOLDING)
        assert first.answer() is True
        with crowded(runner, f"{name}-b", size="30GiB") as second:
            second.send(HOLDING)
            assert second.answer() is True
            with reservations.Registries().frozen():  # Ctrl-Z stops no supervisor that holds it
                first.process.send_signal(signal.SIGSTOP)
                wait_until(lambda: checkpoints.process_state(first.pid) == "T")
            try:
                with crowded(runner, f"{name}-c", size="45GiB"):
                    assert state(runner, f"{name}-b") == "suspended"
                    assert state(runner, name) == "running"
            finally:
                first.process.send_signal(signal.SIGCONT)
            assert first.ask("is_intact(p)") is True
            assert second.ask("is_intact(p)") is True
