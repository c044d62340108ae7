"""Steps of the demonstration, decided from the observations so far."""

import dataclasses

import pytest

from pyvgpu.demo import demo_steps
from pyvgpu.demo.demo_steps import DemoStep
from pyvgpu.demo.observations import (
    GIB,
    MIB,
    TENANTS,
    DemoPlan,
    EventKind,
    Observations,
    Role,
    TenantEvent,
)

from .observed import EVENTS, GOOD, SAMPLES, without

NONE, KILLED, GONE = (
    frozenset[DemoStep](),
    frozenset({DemoStep.KILL}),
    frozenset({DemoStep.KILL, DemoStep.RESTART}),
)

ALL = GONE | {DemoStep.START_LATE}
ONE_GONE = Observations(GOOD.plan, (TenantEvent(0.5, Role.GROWER, EventKind.ENDED, 69),))


def until(seconds):
    """Return the good demonstration as it was at *seconds*."""
    return dataclasses.replace(
        GOOD,
        events=tuple(event for event in EVENTS if event.seconds <= seconds),
        samples=tuple(sample for sample in SAMPLES if sample.seconds <= seconds),
    )


NO_IDLE = dataclasses.replace(
    until(9), events=tuple(x for x in until(9).events if x.role is not Role.IDLE)
)


@pytest.mark.parametrize(
    ("seconds", "seen", "done", "step"),
    [
        pytest.param(1, until(1), NONE, None, id="all grow"),
        pytest.param(
            4, until(4), NONE, DemoStep.KILL, id="the doomed holds, the grower was refused"
        ),
        pytest.param(4, until(2), NONE, None, id="the grower was not refused yet"),
        pytest.param(9, Observations(GOOD.plan), NONE, None, id="no tenant started yet"),
        pytest.param(4.2, until(4.2), KILLED, None, id="a pause to read the table"),
        pytest.param(5, until(4.2), KILLED, None, id="the memory is not back"),
        pytest.param(5, until(4.9), KILLED, DemoStep.RESTART, id="the memory is back"),
        pytest.param(6, until(6), GONE, None, id="the next process shows itself"),
        pytest.param(6.5, until(6.5), GONE, DemoStep.START_LATE, id="the late run"),
        pytest.param(8, until(8), ALL, None, id="nothing more to do"),
        pytest.param(10, until(9), ALL, DemoStep.END, id="the time is over and all was seen"),
        pytest.param(10, until(6.9), ALL, None, id="the late run is not back"),
        pytest.param(10, NO_IDLE, ALL, None, id="the idle tenant is not there yet"),
        pytest.param(
            10, without(EventKind.ROUND, EventKind.ENDED, since=4.5), ALL, None, id="no round yet"
        ),
        pytest.param(
            10, without(EventKind.HELD, EventKind.ENDED, since=4.5), ALL, None, id="not held yet"
        ),
        pytest.param(
            10, without(EventKind.SPUN, EventKind.ENDED), ALL, None, id="no time was shared yet"
        ),
        pytest.param(10, Observations(GOOD.plan), NONE, None, id="no events yet"),
        pytest.param(89, Observations(GOOD.plan), NONE, None, id="a busy machine"),
        pytest.param(90, Observations(GOOD.plan), NONE, DemoStep.END, id="over without events"),
        pytest.param(10, ONE_GONE, NONE, DemoStep.END, id="over because one has failed"),
        pytest.param(9, ONE_GONE, NONE, None, id="one has failed, the others go on"),
    ],
)
def test_due_step(seconds, seen, done, step):
    assert demo_steps.due(seen, done, seconds) is step


def test_script_ends_early_if_all_tenants_have_ended():
    ended = tuple(TenantEvent(0.5, role, EventKind.ENDED, 69) for role in TENANTS)
    assert demo_steps.due(Observations(GOOD.plan, ended), NONE, 1) is DemoStep.END
    assert demo_steps.due(Observations(GOOD.plan, ended[1:]), NONE, 1) is None


@pytest.mark.parametrize("seconds", [demo_steps.SHORTEST, 12, demo_steps.LONGEST])
@pytest.mark.parametrize("context", [104 * MIB, 520 * MIB, 620 * MIB])
def test_grower_is_refused_well_before_the_kill(seconds, context):
    plan = DemoPlan(seconds=seconds, device="", memory=80 * GIB, context=context)
    steps = (plan.quota(Role.GROWER) - context) // (256 * MIB)
    assert 0.2 * seconds <= steps * plan.pause_ms / 1000 <= 0.3 * seconds


def test_late_run_asks_for_a_gibibyte_more_than_is_free():
    plan = DemoPlan(seconds=12, device="", memory=80 * GIB, context=0)
    assert plan.quota(Role.LATE) - plan.unreserved == GIB
    assert plan.unreserved == (68 * 1024 - 3 * 256) * MIB
