"""A chart of a `make bench-replay` record: how long recorded programs took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot
from pictures import BLUE, GREY, INK, RED, WIDTH_INCHES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from replaytable import Line

PARTS = (("alone", False), ("in pairs", True))
LONGEST = 2.0  # times the ideal; more is drawn there


def draw(lines: Sequence[Line], path: Path, source: str) -> None:
    """Draw the times of all rows in ascending order, alone and in pairs, with their bounds."""
    figure, places = pyplot.subplots(1, 2, figsize=(WIDTH_INCHES, 3.2), layout="constrained")
    for axes, (title, paired) in zip(places, PARTS, strict=True):
        chosen = [line for line in lines if (line.control is not None) == paired]
        chosen.sort(key=lambda line: line.time)
        for place, line in enumerate(chosen):
            colour = BLUE if line.kept else RED
            axes.plot(place, min(line.bound, LONGEST), "_", color=GREY, markersize=4)
            axes.plot(place, min(line.time, LONGEST), "o", color=colour, markersize=2.5)
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_ylim(0.4, LONGEST + 0.05)
        axes.set_xticks([])
        axes.set_xlabel(f"{len(chosen)} rows {title}")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    places[0].set_ylabel("time / ideal time")
    places[1].legend(
        handles=[
            mpl.lines.Line2D(
                [], [], color=BLUE, marker="o", linestyle="", label="within the bound"
            ),
            mpl.lines.Line2D([], [], color=RED, marker="o", linestyle="", label="longer"),
            mpl.lines.Line2D([], [], color=GREY, marker="_", linestyle="", label="bound"),
        ],
        loc="upper left",
        frameon=False,
    )
    figure.savefig(path, facecolor="white", metadata={"Date": None, "Title": source})
    pyplot.close(figure)
