"""Comparison of benchmark figures with their goals."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import goals


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        pytest.param(goals.Figure("t", 4, 5, "ms"), "| t | 4.00 ms | 5 ms |", id="within"),
        pytest.param(
            goals.Figure("t", 6, 5, "ms"), "| t | 6.00 ms | 5 ms, **not kept** |", id="past"
        ),
        pytest.param(
            goals.Figure("t", 30, 5, "ms", goals.Beside(26), adds=True),
            "| t | 30.0 ms, a plugin that does nothing 26.0 ms | adds 5 ms |",
            id="what is added is within",
        ),
        pytest.param(
            goals.Figure("t", 30, 25, "ms", goals.Beside(26)),
            "| t | 30.0 ms, a plugin that does nothing 26.0 ms | 25 ms, **not kept** |",
            id="the whole is past",
        ),
        pytest.param(
            goals.Figure("t", 4, 5, "ms", goals.Beside(2), part=goals.Beside(1, "the disk")),
            "| t | 4.00 ms, the disk 1.00 ms, a plugin that does nothing 2.00 ms | 5 ms |",
            id="with what it waits for",
        ),
        pytest.param(
            goals.Figure("t", 6, 5, "ms", goals.Beside(4), part=goals.Beside(3, "the disk")),
            "| t | 6.00 ms, the disk 3.00 ms, a plugin that does nothing 4.00 ms"
            " | 5 ms (**missed, as without pyvgpu**) |",
            id="past, but nothing and the disk take longer",
        ),
        pytest.param(
            goals.Figure("t", 8, 5, "ms", goals.Beside(4), part=goals.Beside(3, "the disk")),
            "| t | 8.00 ms, the disk 3.00 ms, a plugin that does nothing 4.00 ms | 5 ms, "
            "**not kept** |",
            id="past, and past what nothing and the disk take",
        ),
        pytest.param(goals.Figure("t", 4, None, "ms"), "| t | 4.00 ms | none |", id="no goal"),
        pytest.param(
            goals.Figure("t", 120, 100, "a second", goals.Beside(200, "alone"), least=True),
            "| t | 120.0 a second, alone 200.0 a second | at least 100 a second |",
            id="reached",
        ),
        pytest.param(
            goals.Figure("t", 90, 100, "a second", least=True),
            "| t | 90.0 a second | at least 100 a second, **not kept** |",
            id="not reached",
        ),
    ],
)
def test_figure_shows_whether_its_goal_is_met(figure, words):
    assert goals.table([figure]).splitlines()[-1] == words
    assert goals.missed([figure]) == ("not kept" in words)
