"""The state machine of a suspension: which call is next, and what its result means."""

import random
import subprocess
import threading
import types

import pytest
from waiting import wait_until

from pyvgpu.errors import DataError, UnavailableError
from pyvgpu.machine import process_identity
from pyvgpu.run import suspend_operation, suspender, suspension
from pyvgpu.run.suspension import CallOutcome, CheckpointCall, DesiredState, ProcessState, Step

RUNNING, LOCKED, CHECKPOINTED = (
    ProcessState.RUNNING,
    ProcessState.LOCKED,
    ProcessState.CHECKPOINTED,
)


@pytest.mark.parametrize(
    ("desired", "states", "expected"),
    [
        pytest.param(DesiredState.SUSPENDED, {}, None, id="no process"),
        pytest.param(
            DesiredState.SUSPENDED, {7: RUNNING}, Step(CheckpointCall.LOCK, 7), id="lock first"
        ),
        pytest.param(
            DesiredState.SUSPENDED,
            {7: LOCKED, 9: RUNNING},
            Step(CheckpointCall.LOCK, 9),
            id="lock all first",
        ),
        pytest.param(
            DesiredState.SUSPENDED,
            {7: LOCKED, 9: LOCKED},
            Step(CheckpointCall.CHECKPOINT, 7),
            id="then checkpoint",
        ),
        pytest.param(DesiredState.SUSPENDED, {7: CHECKPOINTED}, None, id="suspended"),
        pytest.param(
            DesiredState.RUNNING,
            {7: LOCKED, 9: CHECKPOINTED},
            Step(CheckpointCall.RESTORE, 9),
            id="restore first",
        ),
        pytest.param(
            DesiredState.RUNNING,
            {7: LOCKED, 9: RUNNING},
            Step(CheckpointCall.UNLOCK, 7),
            id="unlock",
        ),
        pytest.param(DesiredState.RUNNING, {7: RUNNING}, None, id="running"),
    ],
)
def test_next_step_brings_the_processes_closer_to_the_desired_state(desired, states, expected):
    assert suspension.next_step(desired, states) == expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({1: RUNNING, 2: LOCKED, 3: CHECKPOINTED}, None),
        ({1: RUNNING, 2: ProcessState.FAILED}, "has failed"),
        ({1: RUNNING, 2: ProcessState(4)}, "moving its memory to the host"),
        ({1: RUNNING, 2: ProcessState(5)}, "moving its memory to the device"),
    ],
)
def test_a_process_that_no_call_moves_is_named(states, expected):
    found = suspension.find_unmoved(states)
    assert (found is None) == (expected is None)
    if found is not None:
        assert (found[0], expected in found[1]) == (2, True)
        last = suspension.next_step(DesiredState.RUNNING, {2: states[2]})
        assert last is None, "it is no end that a driver leaves by a call of ours"


@pytest.mark.parametrize(
    ("action", "result", "expected"),
    [
        (CheckpointCall.LOCK, 0, CallOutcome.DONE),
        (CheckpointCall.LOCK, suspension.NOT_READY, CallOutcome.REFUSED),
        (CheckpointCall.LOCK, suspension.NOT_INITIALIZED, CallOutcome.AGAIN),
        (CheckpointCall.LOCK, suspension.ILLEGAL_STATE, CallOutcome.AGAIN),
        (CheckpointCall.CHECKPOINT, suspension.NOT_SUPPORTED, CallOutcome.REFUSED),
        (CheckpointCall.CHECKPOINT, suspension.OUT_OF_MEMORY, CallOutcome.REFUSED),
        (CheckpointCall.RESTORE, suspension.OUT_OF_MEMORY, CallOutcome.LOST),
        (CheckpointCall.RESTORE, suspension.OPERATING_SYSTEM, CallOutcome.LOST),
        (CheckpointCall.RESTORE, suspension.ILLEGAL_STATE, CallOutcome.AGAIN),
        (CheckpointCall.UNLOCK, suspension.ILLEGAL_STATE, CallOutcome.AGAIN),
    ],
)
def test_results_of_calls_are_evaluated(action, result, expected):
    assert suspension.evaluate(action, result) is expected
    assert suspension.explain(action, result)


def test_any_interrupted_suspension_is_completed_or_taken_back():
    draw = random.Random(5)
    for _ in range(500):
        states = {pid: draw.choice((RUNNING, LOCKED, CHECKPOINTED)) for pid in range(4)}
        desired = draw.choice(tuple(DesiredState))
        steps = 0
        while (step := suspension.next_step(desired, states)) is not None:
            states[step.pid] = suspension.AFTER[step.action]
            steps += 1
            assert steps <= 8
            if draw.random() < 0.1:
                desired, steps = draw.choice(tuple(DesiredState)), 0
        assert set(states.values()) == {
            RUNNING if desired is DesiredState.RUNNING else CHECKPOINTED
        }


def test_another_process_that_got_the_pid_is_not_killed():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        began = process_identity.began(process.pid)
        reused = suspend_operation.Target(process.pid, b"1")
        assert not reused.is_alive
        reused.kill()
        assert process.poll() is None
        target = suspend_operation.Target(process.pid, began)
        assert target.is_alive
        target.kill()
        process.wait()
        assert not target.is_alive
        target.kill()


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"suspension": "stop"},
        {"suspension": "suspend", "host_memory": "much"},
        {"suspension": "suspend", "lock_seconds": 0},
        {"suspension": "suspend", "lock_seconds": "nan"},
    ],
)
def test_invalid_orders_are_refused(found):
    with pytest.raises(DataError):
        suspender.parse_order(found)


def test_order_of_a_client_is_parsed():
    sent = {"suspension": "suspend", "keep": True, "host_memory": 5, "lock_seconds": 2}
    assert suspender.parse_order(sent) == suspend_operation.SuspendOrder(
        DesiredState.SUSPENDED, True, 5, 2.0
    )
    assert suspender.parse_order({"suspension": "resume"}).desired is DesiredState.RUNNING


def test_an_order_during_the_recovery_from_a_failed_one_is_carried_out(monkeypatch, tmp_path):
    """The client of a failed order has its report before the processes have recovered."""
    recovering, may_go_on, failures = threading.Event(), threading.Event(), [UnavailableError("x")]

    class Operation:
        moved = types.SimpleNamespace(to_host=(), to_device=())

        def __init__(self, *_):
            pass

        def suspend(self, _order):
            if failures:
                raise failures.pop()
            return "suspended"

        def recover(self):
            recovering.set()
            assert may_go_on.wait(60)

    monkeypatch.setattr(suspender.suspend_operation, "Operation", Operation)
    own = types.SimpleNamespace(folder=tmp_path)
    made = suspender.Suspender(None, lambda: own, None)
    order = suspender.parse_order({"suspension": "suspend"})
    made.begin(order)
    assert recovering.wait(60)
    busy, report = made.poll()
    assert (busy, str(report.error)) == (False, "x")
    made.begin(order)
    assert made.poll()[0], "the report is of the first order"
    may_go_on.set()
    wait_until(lambda: not made.poll()[0])
    assert made.poll()[1].text == "suspended"
    made.stop()
