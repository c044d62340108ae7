"""Time series of the last minutes: bounded, and only of existing objects."""

from pyvgpu.status import history


def test_the_newest_points_are_kept():
    known = history.History(3)
    for number in range(5):
        known.add({"a": (number, 10 * number)})
    assert known.lines("a", ("x", "y")) == {"x": [2, 3, 4], "y": [20, 30, 40]}
    assert known.points("a")[-1] == (4, 40)


def test_a_missing_object_is_forgotten_and_starts_again():
    known = history.History(3)
    known.add({"a": (1,)})
    known.add({"b": (2,)})
    assert known.lines("a", ("x",)) == {"x": []}
    known.add({"a": (3,), "b": (4,)})
    assert known.lines("a", ("x",)) == {"x": [3]}
    assert known.lines("b", ("x",)) == {"x": [2, 4]}


STEP = history.STEP_SECONDS


def test_a_day_has_the_mean_of_each_step():
    known = history.DayHistory()
    for at, used in ((0, 10), (5, 20), (STEP, 7), (2 * STEP - 1, 0), (2 * STEP, 3)):
        known.add({"a": (used, 1)}, at)
    assert known.lines("a", ("x", "y")) == {"seconds": STEP, "x": [15, 4, 3], "y": [1, 1, 1]}


def test_a_step_without_a_sample_is_unknown_and_not_zero():
    known = history.DayHistory()
    for step in (0, 1, 4):
        known.add({"a": (step,)}, step * STEP)
    assert known.lines("a", ("x",))["x"] == [0, 1, None, None, 4]
    known.add({"a": (9,)}, 10_000 * STEP)  # after a pause of more than a day
    assert known.lines("a", ("x",))["x"] == [None] * (history.DAY_POINTS - 1) + [9]


def test_a_clock_that_is_set_back_adds_to_the_current_step():
    known = history.DayHistory()
    for at, used in ((10 * STEP, 4), (2 * STEP, 6), (11 * STEP, 8)):
        known.add({"a": (used,)}, at)
    assert known.lines("a", ("x",))["x"] == [5, 8]


def test_a_day_is_bounded_whatever_comes_and_goes():
    known = history.DayHistory()
    for step in range(3 * history.DAY_POINTS):
        known.add({"stays": (step,), f"comes-{step}": (1,)}, step * STEP)
    points = known.lines("stays", ("x",))["x"]
    last = 3 * history.DAY_POINTS - 1
    assert (len(points), points[0], points[-1]) == (
        history.DAY_POINTS,
        last - history.DAY_POINTS + 1,
        last,
    )
    assert known.lines(f"comes-{last - 1}", ("x",)) == {"seconds": STEP, "x": []}
    assert len(known._means) == 2
    assert all(len(past) < history.DAY_POINTS + 1 for past in known._means["stays"]._past)
