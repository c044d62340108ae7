"""Two charts of a record: the latency of each call, and each figure relative to its goal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from figures import Figure
    from matplotlib.axes import Axes

GREY, BLUE, RED, INK = "#b8bec6", "#2f6fb3", "#c2412d", "#24292f"
WIDTH_INCHES = 8.0
ROW_INCHES = 0.3
WIDEST_NS = 800  # longer bars are cut off, and labelled
PAST = 110  # percent of a goal; more is only past it

mpl.rcParams.update(
    {
        "svg.hashsalt": "pyvgpu",  # the same record gives the same file
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)

Row = tuple["Figure", float, float, float]  # bare, shim, added, in the unit of the metric


def draw_calls(rows: Sequence[Row], path: Path, source: str) -> None:
    """Draw the bare driver's time and the shim's for every figure that is in nanoseconds."""
    calls = [row for row in rows if row[0].unit == "ns" and row[0].metric == "p50"]
    axes = new_axes([figure.title for figure, *_ in calls], 1.6 * ROW_INCHES)
    for place, (_, bare, shim, _added) in enumerate(calls):
        for offset, value, colour in ((-0.19, bare, GREY), (0.19, shim, BLUE)):
            axes.barh(place + offset, min(value, WIDEST_NS), height=0.36, color=colour)
            label = f"{value:,.0f}" + (" →" if value > WIDEST_NS else "")
            axes.text(min(value, WIDEST_NS) + 6, place + offset, label, va="center", fontsize=8)
    axes.set_xlim(0, WIDEST_NS * 1.08)
    axes.set_xlabel("nanoseconds, median of calls")
    axes.legend(
        handles=[
            mpl.patches.Patch(color=GREY, label="bare driver (simulated)"),
            mpl.patches.Patch(color=BLUE, label="with the shim"),
        ],
        loc="lower right",
        frameon=False,
    )
    save(axes, path, source)


def draw_goals(rows: Sequence[Row], path: Path, source: str) -> None:
    """Draw what each figure uses of what its goal allows."""
    evaluated = [row for row in rows if row[0].goal]
    axes = new_axes([figure.title for figure, *_ in evaluated], ROW_INCHES)
    for place, (figure, bare, shim, added) in enumerate(evaluated):
        goal = figure.goal or 0
        value = {"added": added, "ratio": shim / (bare or 1)}.get(figure.evaluated, shim)
        used = 100 * max(value, 0) / goal
        axes.barh(place, min(used, PAST), height=0.62, color=BLUE if used <= 100 else RED)
        text = f"{figure.comparison(value)} of {figure.comparison(goal)}"
        axes.text(PAST + 2, place, text, va="center", fontsize=8)
    axes.axvline(100, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, PAST + 40)
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.set_xlabel("of what the goal allows")
    save(axes, path, source)


def new_axes(labels: Sequence[str], row_inches: float) -> Axes:
    """Return axes with a row for each label, from the top."""
    height = row_inches * len(labels) + 0.8
    _, axes = pyplot.subplots(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e6e8eb")
    return axes


def save(axes: Axes, path: Path, source: str) -> None:
    """Write the picture; *source* is said in it."""
    figure = axes.figure
    figure.savefig(path, facecolor="white", metadata={"Date": None, "Title": source})
    pyplot.close(figure.get_figure(root=True))
