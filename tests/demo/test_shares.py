"""Shares of time from what was seen: the ns between two moments, on straight lines."""

import dataclasses

import pytest

from pyvgpu.demo import shares
from pyvgpu.demo.observations import EventKind, Observations, Role

from .observed import EVENTS, GOOD, PLAN, SAMPLES, altered, sample, spun

POINTS = ((1.0, 0.0), (2.0, 1e9), (4.0, 1e9), (5.0, 1.5e9))


@pytest.mark.parametrize(
    ("begin", "end", "share"),
    [
        pytest.param(1.0, 2.0, 1.0, id="busy all the time"),
        pytest.param(2.0, 4.0, 0.0, id="idle"),
        pytest.param(1.5, 2.5, 0.5, id="between two points"),
        pytest.param(0.0, 2.0, 0.5, id="before the first nothing was used"),
        pytest.param(4.0, 6.0, 0.25, id="after the last nothing is known"),
        pytest.param(3.0, 3.0, 0.0, id="no time at all"),
    ],
)
def test_share_is_the_used_fraction_of_the_time(begin, end, share):
    assert shares.share(POINTS, begin, end) == pytest.approx(share)


def test_without_samples_there_is_no_share():
    assert shares.share((), 0.0, 1.0) == 0.0
    assert shares.recent((), Role.SMALL) == 0.0


def test_series_has_the_share_of_each_step():
    assert shares.series(POINTS, 5.0, 1.0) == (
        (1.0, 0.0),
        (2.0, 1.0),
        (3.0, 0.0),
        (4.0, 0.0),
        (5.0, 0.5),
    )


def test_window_is_when_all_worked_and_samples_exist():
    found = shares.window(GOOD)
    assert (found.begin, found.end) == (1.5, 6.0)
    assert [x.seconds for x in found.samples(GOOD)] == [3.0, 4.1, 4.5, 6.0]


def test_window_begins_when_the_idle_tenant_has_started():
    found = shares.window(altered(Role.IDLE, EventKind.HELD, seconds=4.2))
    assert (found.begin, found.end) == (4.2, 6.0)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(Observations(PLAN), id="nothing"),
        pytest.param(dataclasses.replace(GOOD, samples=()), id="no samples"),
        pytest.param(dataclasses.replace(GOOD, samples=SAMPLES[:1]), id="sampled too early"),
        pytest.param(
            altered(Role.IDLE, EventKind.HELD, seconds=5.5), id="the idle one was too late"
        ),
        pytest.param(
            dataclasses.replace(GOOD, events=(*EVENTS[:1], spun(Role.SMALL, 1.0))), id="one alone"
        ),
        pytest.param(
            dataclasses.replace(
                GOOD,
                events=tuple(x for x in EVENTS if x.kind is not EventKind.SPUN or x.seconds < 2),
            ),
            id="too short",
        ),
    ],
)
def test_no_window_without_all_tenants(seen):
    assert shares.window(seen) is None


def test_recent_share_covers_only_the_last_second():
    samples = (sample(1.0), sample(2.0, small_busy=10**9), sample(3.0, small_busy=15 * 10**8))
    assert shares.recent(samples, Role.SMALL) == 0.5
