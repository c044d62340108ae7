"""`pyvgpu demo --scenario oversubscribe`: its steps, its claims, and all of it once."""

import dataclasses
import io
import json
import subprocess

import pytest
from rich.console import Console

from pyvgpu.demo.observations import GIB, MIB, EventKind, Role, TenantEvent
from pyvgpu.demo.oversubscribe import notebook_claims, notebook_demo, notebook_scenario
from pyvgpu.demo.oversubscribe.notebook_scenario import (
    STEPS,
    NotebookObservations,
    NotebookPlan,
    NotebookSample,
    NotebookStep,
    NotebookView,
)

from .test_demo import DEMO, leavings, room

__all__ = ["room"]

PLAN = NotebookPlan("a device", 80 * GIB)
QUOTA = 32 * GIB
REFUSAL = "pyvgpu: no room within 3 s (--wait): the other runs on the device work"


def event(seconds, role, kind, number=0, **fields):
    return TenantEvent(seconds, role, kind, number, **fields)


EVENTS = (
    event(1.0, Role.FIRST, EventKind.START),
    event(1.1, Role.FIRST, EventKind.HELD, size=24 * MIB),
    event(2.0, Role.SECOND, EventKind.START),
    event(2.1, Role.SECOND, EventKind.HELD, size=24 * MIB),
    event(3.6, Role.FIRST, EventKind.ASKED),
    event(3.7, Role.FIRST, EventKind.CELL, size=24 * MIB),
    event(5.2, Role.SECOND, EventKind.ASKED),
    event(5.3, Role.SECOND, EventKind.CELL, size=24 * MIB),
    event(9.0, Role.FIRST, EventKind.SUSPENDED, size=GIB),
    event(9.2, Role.THIRD, EventKind.START),
    event(9.3, Role.THIRD, EventKind.HELD, size=24 * MIB),
    event(9.4, Role.THIRD, EventKind.ASKED),
    event(9.5, Role.THIRD, EventKind.CELL, size=24 * MIB),
    event(9.6, Role.FIRST, EventKind.ASKED),
    event(10.0, Role.SECOND, EventKind.SUSPENDED, size=GIB),
    event(10.3, Role.FIRST, EventKind.RESUMED),
    event(10.4, Role.FIRST, EventKind.CELL, size=24 * MIB),
    *(event(10.4, role, EventKind.ASKED) for role in notebook_scenario.WORKERS),
    *(event(11.4, role, EventKind.CELL, size=24 * MIB) for role in notebook_scenario.WORKERS),
    event(11.5, Role.LATE, EventKind.ASKED),
    *(event(11.6, role, EventKind.ASKED) for role in notebook_scenario.WORKERS),
    *(event(12.6, role, EventKind.CELL, size=24 * MIB) for role in notebook_scenario.WORKERS),
    event(16.0, Role.LATE, EventKind.START_REFUSED, 69, text=REFUSAL),
)


def view(role, state="running", **fields):
    reserved = QUOTA if state == "running" else 0
    return NotebookView(role, state, **{"reserved": reserved, **fields})


SAMPLES = (
    NotebookSample(2.5, GIB, (view(Role.FIRST), view(Role.SECOND))),
    NotebookSample(
        9.1,
        GIB,
        (
            view(Role.FIRST, "suspended", host=GIB, moves=(100.0,)),
            view(Role.SECOND),
            view(Role.THIRD, "waiting"),
        ),
    ),
    NotebookSample(
        11.0,
        2 * GIB,
        (
            view(Role.FIRST, moves=(100.0, 101.0)),
            view(Role.SECOND, "suspended", host=GIB, moves=(100.8,)),
            view(Role.THIRD),
        ),
    ),
)
GOOD = NotebookObservations(PLAN, EVENTS, SAMPLES)


def without(role, kind, since=0.0, until=99.0):
    kept = [
        x
        for x in EVENTS
        if not (x.role is role and x.kind is kind and since <= x.seconds <= until)
    ]
    return dataclasses.replace(GOOD, events=tuple(kept))


def more(*events):
    together = sorted((*EVENTS, *events), key=lambda x: x.seconds)
    return dataclasses.replace(GOOD, events=tuple(together))


def sampled(*samples):
    return dataclasses.replace(GOOD, samples=samples)


def until(seconds):
    return dataclasses.replace(GOOD, events=tuple(x for x in EVENTS if x.seconds <= seconds))


def test_every_claim_holds_for_a_good_demonstration():
    assert [x for x in notebook_claims.evaluate(GOOD) if not x.holds] == []


WRONG = dataclasses.replace(
    GOOD,
    events=tuple(
        dataclasses.replace(x, number=4) if x.kind is EventKind.CELL and x.seconds == 10.4 else x
        for x in EVENTS
    ),
)
MANY = sampled(
    dataclasses.replace(
        SAMPLES[2], views=(view(Role.FIRST, moves=tuple(100.0 + i for i in range(21))),)
    )
)


@pytest.mark.parametrize(
    ("seen", "claim", "why"),
    [
        pytest.param(sampled(SAMPLES[0]), 0, "at most 2 runs started", id="two fit"),
        pytest.param(sampled(), 1, "nothing was observed", id="no samples"),
        pytest.param(
            sampled(NotebookSample(3, 0, tuple(view(x) for x in notebook_scenario.NOTEBOOKS))),
            1,
            "96.00 GiB of 80.00 GiB, says the reservations",
            id="reserved",
        ),
        pytest.param(
            sampled(NotebookSample(3, 81 * GIB, ())), 1, "81.00 GiB of 80.00 GiB", id="used"
        ),
        pytest.param(without(Role.THIRD, EventKind.START), 2, "did not start", id="no third"),
        pytest.param(
            more(event(8.9, Role.SECOND, EventKind.SUSPENDED)), 2, "first, second", id="two"
        ),
        pytest.param(
            without(Role.FIRST, EventKind.SUSPENDED), 2, "third run: none", id="none suspended"
        ),
        pytest.param(WRONG, 3, "4 bytes were not", id="wrong bytes"),
        pytest.param(
            without(Role.FIRST, EventKind.CELL, 9), 3, "asked to work, and done", id="never done"
        ),
        pytest.param(
            without(Role.FIRST, EventKind.RESUMED), 3, "never seen to be", id="never resumed"
        ),
        pytest.param(
            without(Role.LATE, EventKind.START_REFUSED), 4, "was not refused", id="late starts"
        ),
        pytest.param(
            more(event(13, Role.THIRD, EventKind.SUSPENDED)), 4, "the third run was", id="worker"
        ),
        pytest.param(
            without(Role.THIRD, EventKind.CELL, 11.5), 4, "did not work", id="no work meanwhile"
        ),
        pytest.param(sampled(SAMPLES[0]), 5, "no run was moved", id="no moves"),
        pytest.param(MANY, 5, "21 moves in a minute, 20 are allowed", id="moves"),
        pytest.param(
            dataclasses.replace(GOOD, left=("something",)), 6, "something", id="left-overs"
        ),
    ],
)
def test_a_claim_fails_for_its_fault(seen, claim, why):
    verdict = notebook_claims.evaluate(seen)[claim]
    assert not verdict.holds
    assert why in verdict.seen


@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        pytest.param(NotebookStep.START_SECOND, 1.0, 1.1, id="the first has memory"),
        pytest.param(NotebookStep.WORK_FIRST, 3.5, 3.6, id="the second rests"),
        pytest.param(NotebookStep.WORK_SECOND, 5.1, 5.2, id="the first rests"),
        pytest.param(NotebookStep.START_THIRD, 8.7, 8.8, id="both are idle"),
        pytest.param(NotebookStep.WORK_THIRD, 9.2, 9.3, id="the third has memory"),
        pytest.param(NotebookStep.WORK_AGAIN, 9.4, 9.5, id="the third has worked"),
        pytest.param(NotebookStep.START_LATE, 12.5, 12.6, id="the workers work"),
        pytest.param(NotebookStep.END, 15.9, 16.0, id="the late run is refused"),
    ],
)
def test_step_is_due_after_what_it_waits_for(step, before, after):
    done = STEPS.index(step)
    assert notebook_scenario.due(until(before), done, before) is None
    assert notebook_scenario.due(until(after), done, after) is step


def test_a_failed_notebook_or_a_long_time_ends_it():
    failed = more(event(2, Role.SECOND, EventKind.ENDED, 1))
    assert notebook_scenario.due(failed, 2, 2) is NotebookStep.END
    assert notebook_scenario.due(until(2), 3, 90) is NotebookStep.END


def test_workers_go_on_until_the_late_run_is_decided():
    assert notebook_scenario.idle_workers(until(9.5)) == ()
    assert notebook_scenario.idle_workers(until(11.4)) == (Role.FIRST, Role.THIRD)
    assert notebook_scenario.idle_workers(until(11.6)) == ()
    assert notebook_scenario.idle_workers(GOOD) == ()


def test_table_shows_where_the_memory_is():
    console = Console(width=100, file=io.StringIO())
    console.print(notebook_demo.table(PLAN, SAMPLES[2]))
    text = console.file.getvalue()
    assert (
        "second   suspended   32.00 GiB    0.00 GiB    0.00 GiB         1.00 GiB       1" in text
    )
    assert (
        "device   80.00 GiB   96.00 GiB   64.00 GiB    2.00 GiB         1.00 GiB       3" in text
    )


@pytest.mark.slow
def test_all_claims_hold_and_nothing_is_left(room):
    ran = subprocess.run(
        [*DEMO[:2], "--scenario", "oversubscribe", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    found = json.loads(ran.stdout)
    assert [claim for claim in found["claims"] if not claim["holds"]] == []
    assert len(found["claims"]) == len(notebook_claims.CLAIMS)
    assert ran.returncode == 0
    assert leavings(room) == []
