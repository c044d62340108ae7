"""Figures of launch patterns, computed from synthetic runs."""

import math

import patterns
import pytest
import ratios
import scores
from ratios import Bound

from pyvgpu import quota

MS = 1_000_000
SECOND = 1000 * MS


def ran(*had_ms, **said):
    """Return a run: its GPU time in ms after 0, 1, 2... seconds, and the program's report."""
    at = [SECOND * number for number in range(len(had_ms))]
    had = scores.Had(at, [ms * MS for ms in had_ms])
    return ratios.Ran(said, had, SECOND, at[-1] if at else 0)


def pair(limited, bare=None, allowed=50, piece_ms=1):
    return ratios.Pair(limited, bare or ran(), allowed, piece_ms * MS, slice_ns=2 * MS)


def measure(bound, given):
    return ratios.FIGURES[bound.figure](given)


@pytest.mark.parametrize(
    ("launches", "percent"),
    [
        pytest.param(500, 100, id="all that the share allows"),
        pytest.param(475, 95, id="less"),
        pytest.param(1000, 200, id="not limited"),
        pytest.param(0, 0, id="nothing"),
    ],
)
def test_rate_is_relative_to_the_share(launches, percent):
    limited = ran(launches=launches, elapsed_ns=SECOND)
    bare = ran(launches=2000, elapsed_ns=2 * SECOND)
    assert measure(patterns.RATE, pair(limited, bare)) == pytest.approx(percent)


def test_share_excludes_the_first_second():
    assert ratios.share(pair(ran(0, 900, 1400, 1900))) == pytest.approx(50)


@pytest.mark.parametrize(
    ("longest_ms", "beyond_ms"),
    [
        pytest.param(2, -198, id="short"),
        pytest.param(200, 0, id="as long as what was had too much is owed"),
        pytest.param(1000, 800, id="longer"),
    ],
)
def test_call_may_take_the_debt_divided_by_the_rate(longest_ms, beyond_ms):
    had = (0, 500, 1100, 1600)  # at most 100 ms more than half of the time
    given = pair(ran(*had, longest_ns=longest_ms * MS))
    assert measure(patterns.CALL, given) == pytest.approx(beyond_ms)


def test_call_may_take_the_longest_kernel_divided_by_the_rate():
    given = pair(ran(0, 500, longest_ns=60 * MS), piece_ms=30)
    assert measure(patterns.CALL, given) == pytest.approx(0)


@pytest.mark.parametrize(
    ("had", "debt_ms"),
    [
        pytest.param((0, 500, 1000), 0, id="even"),
        pytest.param((0, 1000, 1000), 500, id="first too much"),
        pytest.param((0, 0, 1000), 500, id="a pause saves nothing"),
        pytest.param((0, 700, 1400, 1400), 400, id="adds up"),
    ],
)
def test_debt_is_the_largest_excess_over_the_rate_in_any_span(had, debt_ms):
    assert ratios.debt_ns(ran(*had).had, 0.5) == pytest.approx(debt_ms * MS)


def test_time_of_the_same_work_is_relative_to_the_share():
    bare = ran(work_ns=100, returned=1)
    assert measure(patterns.TIME, pair(ran(work_ns=200, returned=1), bare)) == pytest.approx(1)
    assert measure(patterns.TIME, pair(ran(work_ns=400, returned=1), bare)) == pytest.approx(2)
    assert measure(patterns.TIME, pair(ran(work_ns=100, returned=0), bare)) == math.inf


@pytest.mark.parametrize(
    ("few", "other", "ratio"),
    [
        pytest.param(100, 150, 1.5, id="half as long again"),
        pytest.param(100, 0, math.inf, id="it did not come to the others"),
        pytest.param(0, 0, math.inf, id="nor to the first"),
    ],
)
def test_unseen_shapes_are_compared_with_known_ones(few, other, ratio):
    assert measure(patterns.UNSEEN, pair(ran(few_ns=few, other_ns=other))) == ratio


def test_known_shapes_are_compared_with_the_share():
    assert measure(patterns.KNOWN, pair(ran(few_ns=220), ran(few_ns=100))) == pytest.approx(1.1)
    assert measure(patterns.KNOWN, pair(ran(few_ns=0), ran(few_ns=100))) == math.inf


def test_call_that_does_not_return_takes_infinitely_long():
    assert measure(patterns.RETURNS, pair(ran(returned=1, elapsed_ns=3 * MS))) == 3
    assert measure(patterns.RETURNS, pair(ran(returned=0, elapsed_ns=3 * MS))) == math.inf


def test_used_time_is_paid_by_elapsed_time():
    # 4 s of the device at 10 % are 40 s.
    assert measure(patterns.PAID, pair(ran(0, 4000, work_ns=40 * SECOND), None, 10)) == 1
    assert measure(patterns.PAID, pair(ran(0, 4000, work_ns=4 * SECOND), None, 10)) == 0.1
    assert measure(patterns.PAID, pair(ran(0, 0, work_ns=4 * SECOND), None, 10)) == math.inf


@pytest.mark.parametrize(
    ("took_ms", "kept"),
    [
        pytest.param(10, True, id="as long as alone"),
        pytest.param(15, True, id="1.3 times and a slice"),
        pytest.param(15.1, False, id="longer"),
    ],
)
def test_latency_may_grow_by_a_slice_and_a_third(took_ms, kept):
    alone, beside = ran(p99_ns=10 * MS), ran(p99_ns=round(took_ms * MS))
    assert patterns.LATENCY.is_kept(measure(patterns.LATENCY, pair(beside, alone))) is kept


def test_control_of_a_priority_pattern_has_normal_priority():
    for pattern in patterns.PRIORITIES:
        assert pattern.reference == (pattern.program,)
        assert {tenant.priority for tenant in pattern.control} == {quota.Priority.NORMAL}
        assert [tenant.kind for tenant in pattern.control] == [
            tenant.kind for tenant in pattern.tenants
        ]


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        pytest.param(Bound("x", least=1), [False, True, True], id="least"),
        pytest.param(Bound("x", most=1), [True, True, False], id="most"),
        pytest.param(Bound("x", least=1, most=1.5), [False, True, False], id="both"),
    ],
)
def test_bounds_are_within_themselves(bound, kept):
    assert [bound.is_kept(value) for value in (0.5, 1, 2)] == kept


def test_every_bound_has_a_figure_and_a_limit():
    for pattern in patterns.PATTERNS:
        for bound in pattern.bounds:
            assert bound.figure in ratios.FIGURES
            assert (bound.least, bound.most) != (None, None)


def test_pattern_names_are_unique():
    names = [pattern.name for pattern in patterns.PATTERNS]
    assert len(set(names)) == len(names)


def test_bounds_as_text():
    assert patterns.words({"least": 0.9, "most": 1.1}) == "at least 0.9, at most 1.1"
    assert patterns.words({"least": 95, "most": None}) == "at least 95"
