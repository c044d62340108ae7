"""Evaluation of alternating measurement phases with and without the shim."""

import figures
import pytest
import run

BY_NAME = {figure.name: figure for figure in figures.FIGURES}


def evaluate(name, *pairs):
    metric = BY_NAME[name].metric
    return run.evaluate(
        BY_NAME[name],
        {
            "bare": [{metric: bare} for bare, _ in pairs],
            "shim": [{metric: shim} for _, shim in pairs],
        },
    )


def test_added_time_is_the_median_of_differences():
    outcome = evaluate("launch-p99", (100, 140), (300, 350), (200, 440), (700, 720), (900, 990))
    assert (outcome.bare, outcome.shim, outcome.added) == (300, 440, 50)
    assert outcome.passed


def test_tail_in_most_phases_counts():
    pairs = [(100, 1000)] * 6 + [(100, 110)] * 4
    assert evaluate("launch-p99", *pairs).passed is False


def test_least_disturbed_quarter_of_the_medians_counts():
    quiet, disturbed = (30, 40), (60, 150)
    outcome = evaluate("launch", *[disturbed] * 6, *[quiet] * 2)
    assert (outcome.bare, outcome.shim, outcome.added) == (30, 40, 10)


@pytest.mark.parametrize("name", ["launch", "launch-threads", "pair"])
def test_quarter_is_chosen_by_both_sides(name):
    """A side must not look better because only the other one was disturbed."""
    outcome = evaluate(
        name, (30, 130), (30, 130), (130, 40), (130, 40), (50, 60), (50, 60), (50, 60)
    )
    assert outcome.added == 10


def test_single_runs_are_pairs():
    assert evaluate("start", (500, 700), (900, 1000), (600, 750)).added == 150
