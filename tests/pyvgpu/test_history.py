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
