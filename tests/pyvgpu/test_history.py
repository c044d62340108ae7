"""Time series of the last minutes and the last day: bounded, and only of existing objects."""

import json

import pytest

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


def restored(text, at):
    known = history.DayHistory()
    known.restore(text, at)
    return known


def test_a_sample_of_the_next_step_says_that_a_step_is_over():
    known = history.DayHistory()
    seen = [known.add({"a": (1,)}, at) for at in (10 * STEP, 10 * STEP + 5, 11 * STEP, 3 * STEP)]
    assert seen == [False, False, True, False]


def test_a_day_continues_after_a_restart():
    known = history.DayHistory()
    for step, used in ((10, 1), (12, 3)):
        known.add({"a": (used, 7)}, step * STEP)
    later = restored(known.text(), 14 * STEP)
    later.add({"a": (5, 7)}, 14 * STEP)
    assert later.lines("a", ("x", "y")) == {
        "seconds": STEP,
        "x": [1, None, 3, None, 5],
        "y": [7, None, 7, None, 7],
    }


def test_a_restart_within_a_step_continues_that_step():
    known = history.DayHistory()
    known.add({"a": (4,)}, 10 * STEP)
    later = restored(known.text(), 10 * STEP + 60)
    later.add({"a": (6,)}, 10 * STEP + 60)
    assert later.lines("a", ("x",))["x"] == [5]


def test_a_stored_day_is_bounded():
    known = history.DayHistory()
    for step in range(1, 3 * history.DAY_POINTS):
        known.add({"a": (step % 1000, 80_000)}, step * STEP)
    text = known.text()
    assert len(text) < 4096
    later = restored(text, step * STEP)
    assert later.text() == text
    later.add({"a": (1, 1)}, (step + 1) * STEP)
    assert len(later.lines("a", ("x",))["x"]) == history.DAY_POINTS


def test_a_restored_day_waits_for_its_first_sample():
    """Until the driver was found, an agent has no devices."""
    known = history.DayHistory()
    known.add({"a": (1,)}, 10 * STEP)
    later = restored(known.text(), 10 * STEP)
    assert later.lines("a", ("x",)) == {"seconds": STEP, "x": []}
    later.add({}, 11 * STEP)
    assert later.text() == known.text()
    later.add({"a": (2,)}, 11 * STEP)
    assert later.lines("a", ("x",))["x"] == [1, 2]


@pytest.mark.parametrize(
    "step",
    [pytest.param(11, id="future"), pytest.param(10 - history.DAY_POINTS, id="older than a day")],
)
def test_a_day_that_cannot_be_continued_is_left_out(step):
    text = json.dumps({"seconds": STEP, "days": {"a": {"step": 400 + step, "values": [[1]]}}})
    known = restored(text, 410 * STEP)
    known.add({"a": (2,)}, 410 * STEP)
    assert known.lines("a", ("x",))["x"] == [2]


def test_a_day_with_another_number_of_values_starts_empty():
    known = history.DayHistory()
    known.add({"a": (1,), "b": (1, 1)}, 10 * STEP)
    later = restored(known.text(), 11 * STEP)
    later.add({"a": (2, 2), "b": (2, 2)}, 11 * STEP)
    assert later.lines("a", ("x", "y")) == {"seconds": STEP, "x": [2], "y": [2]}
    assert later.lines("b", ("x", "y")) == {"seconds": STEP, "x": [1, 2], "y": [1, 2]}


def one(values, step=9):
    return json.dumps({"seconds": STEP, "days": {"a": {"step": step, "values": values}}})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(b"\xff\x00", id="no text"),
        pytest.param("[" * 100_000, id="nested"),
        pytest.param("[]", id="a list"),
        pytest.param('{"seconds": 300}', id="no days"),
        pytest.param('{"seconds": 60, "days": {}}', id="another step"),
        pytest.param('{"seconds": 300, "days": [1]}', id="days as a list"),
        pytest.param('{"seconds": 300, "days": {"a": 1}}', id="a number as a day"),
        pytest.param('{"seconds": 300, "days": {"a": {"step": 9}}}', id="no values"),
        pytest.param(one([]), id="no value"),
        pytest.param(one([[]]), id="no points"),
        pytest.param(one([[1], [1, 2]]), id="lines of unequal length"),
        pytest.param(one(["ab"]), id="text as points"),
        pytest.param(one([[1.5]]), id="a fraction"),
        pytest.param(one([[True]]), id="a boolean"),
        pytest.param(one([[None]]), id="null"),
        pytest.param(one([[-2]]), id="a negative value"),
        pytest.param(one([[1 << 63]]), id="a value that is too large"),
        pytest.param(one([[1] * (history.DAY_POINTS + 1)]), id="more than a day"),
        pytest.param(one([[1]], "9"), id="text as the step"),
    ],
)
def test_a_text_of_another_form_is_refused_and_changes_nothing(text):
    known = history.DayHistory()
    known.add({"a": (1,)}, 10 * STEP)
    before = known.text()
    with pytest.raises(ValueError, match=r"."):
        known.restore(text, 10 * STEP)
    assert known.text() == before
