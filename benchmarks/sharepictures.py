"""Two charts of a `make bench-share` record: errors and their bounds, shares over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot
from pictures import BLUE, GREY, INK, RED, ROW_INCHES, WIDTH_INCHES, new_axes, save
from share import SERIES_NS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from sharetable import Line

PAST = 1.5  # of a bound; more is only past it
OVER_TIME = ("settling", "elastic")
TENANTS = (BLUE, "#d08a1d")


def draw_errors(lines: Sequence[Line], path: Path, source: str) -> None:
    """Draw what each line uses of its bounds, and what the same does without the shim."""
    axes = new_axes([line.title for line in lines], 1.2 * ROW_INCHES)
    for place, line in enumerate(lines):
        used = max(figure.used for figure in line.figures)
        axes.barh(place - 0.19, min(line.control, PAST), height=0.36, color=GREY)
        axes.barh(place + 0.19, min(used, PAST), height=0.36, color=BLUE if used <= 1 else RED)
        axes.text(PAST + 0.02, place, f"{100 * used:.0f} %", va="center", fontsize=8)
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, PAST + 0.2)
    axes.set_xticks([0, 0.5, 1, 1.5], ["0", "50", "100 %", "more"])
    axes.set_xlabel("of what may be wrong at most; the worst over all vcores and windows")
    axes.legend(
        handles=[
            mpl.patches.Patch(color=GREY, label="without the shim"),
            mpl.patches.Patch(color=BLUE, label="with the shim"),
        ],
        loc="upper right",
        bbox_to_anchor=(0.86, 1.0),
        frameon=True,
        edgecolor="white",
    )
    save(axes, path, source)


def draw_over_time(rows: Sequence[dict[str, Any]], path: Path, source: str) -> None:
    """Draw what each tenant had of the device, step by step, and what it should have."""
    figure, places = pyplot.subplots(
        len(rows), figsize=(WIDTH_INCHES, 2.6 * len(rows)), layout="constrained", squeeze=False
    )
    for (axes,), row in zip(places, rows, strict=True):
        _draw_row(axes, row)
    figure.savefig(path, facecolor="white", metadata={"Date": None, "Title": source})
    pyplot.close(figure)


def _draw_row(axes: Axes, row: dict[str, Any]) -> None:
    step = SERIES_NS / 1e9
    for colour, had, bare in zip(TENANTS, row["series"], row["control_series"], strict=False):
        seconds = [step * (number + 0.5) for number in range(len(had))]
        axes.plot(seconds[: len(bare)], bare, color=colour, linewidth=0.7, alpha=0.35)
        axes.plot(seconds, had, color=colour, linewidth=1.4)
    for claim in row["claims"]:
        span = (claim["at_s"], claim["until_s"])
        axes.hlines(claim["expected"], *span, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_title(row["name"], fontsize=9, loc="left")
    axes.set_ylim(0, 105)
    axes.set_xlim(0, step * len(row["series"][0]))
    axes.set_ylabel("% of the device")
    axes.set_xlabel("seconds; faint: without the shim; dashed: what it should be")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
