"""The scores of `make bench-share`, computed from synthetic traces."""

import pytest
import scores

MS = 1_000_000
SECOND = 1000 * MS


def had(*parts):
    """Return a trace of successive shares of the device: (milliseconds, percent)."""
    at, got = [0], [0]
    for milliseconds, percent in parts:
        for _ in range(milliseconds // 5):
            at.append(at[-1] + 5 * MS)
            got.append(got[-1] + 5 * MS * percent // 100)
    return scores.Had(at, got)


def exactly(share):
    return scores.Due(share, share)


def test_even_share_has_no_error():
    result = scores.evaluate(had((4000, 30)), exactly(30), 1 * SECOND, 4 * SECOND, SECOND)
    assert result.mean == pytest.approx(30)
    assert result.mean_error == pytest.approx(0)
    assert len(result.windows) == 3


def test_opposite_errors_add_up_only_in_the_mean_error():
    result = scores.evaluate(had((1000, 20), (1000, 40)), exactly(30), 0, 2 * SECOND, SECOND)
    assert result.mean == pytest.approx(30)
    assert result.mean_error == pytest.approx(10)


def test_one_bad_window_is_the_worst():
    result = scores.evaluate(had((3000, 50), (1000, 42)), exactly(50), 0, 4 * SECOND, SECOND)
    assert result.worst_error == pytest.approx(8)
    assert result.mean_error == pytest.approx(2)


def test_share_between_two_samples_is_interpolated():
    assert had((1000, 40)).share(2.5 * MS, 7.5 * MS) == pytest.approx(40)


@pytest.mark.parametrize(
    ("parts", "settled_ms", "overshoot"),
    [
        pytest.param([(1000, 50)], 0, 0, id="at once"),
        pytest.param([(60, 80), (940, 50)], 50, 18, id="after a burst"),
        pytest.param([(100, 0), (900, 50)], 95, 0, id="after a pause"),
        pytest.param([(900, 50), (100, 10)], None, 0, id="never"),
    ],
)
def test_settling_time_is_the_last_window_that_was_off(parts, settled_ms, overshoot):
    result = scores.settle(had(*parts), exactly(50), 0, SECOND, 100 * MS)
    assert result.settled_ns == (None if settled_ms is None else settled_ms * MS)
    assert result.overshoot == pytest.approx(overshoot, abs=0.1)


@pytest.mark.parametrize(
    ("wanted", "capacity", "least"),
    [
        pytest.param([30, 60], 96, 30, id="all can be had"),
        pytest.param([30, 70], 100, 30, id="just so"),
        pytest.param([40, 60], 95, 38, id="in proportion"),
        pytest.param([70, 30], 95, 65, id="evenly, and the other has all it wants"),
        pytest.param([50, 30, 20], 90, 40, id="evenly, and both others do"),
        pytest.param([25] * 4, 80, 20, id="four alike"),
    ],
)
def test_less_is_due_where_the_capacity_is_too_small(wanted, capacity, least):
    assert scores.due(0, wanted, capacity) == scores.Due(least, wanted[0])


@pytest.mark.parametrize(("share", "off"), [(24, 2), (26, 0), (30, 0), (33, 3)])
def test_share_within_the_due_range_is_not_off(share, off):
    assert scores.Due(26, 30).off(share) == off
