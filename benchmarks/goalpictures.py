"""Chart of figures with goals: the used part of each goal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pictures import BLUE, PAST, RED, ROW_INCHES, new_axes, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from goals import Figure


def draw(found: Sequence[Figure], path: Path, source: str) -> None:
    """Draw what is used of each goal."""
    found = [row for row in found if row.goal is not None]
    axes = new_axes([row.title for row in found], ROW_INCHES)
    for place, row in enumerate(found):
        used = 100 * max(row.used, 0)
        axes.barh(place, min(used, PAST), height=0.62, color=BLUE if used <= 100 else RED)
        axes.text(PAST + 2, place, f"{used:.0f} % of {row.line.goal}", va="center", fontsize=8)
    axes.set_xlim(0, PAST + 30)
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"])
    axes.set_xlabel("of what the goal allows")
    save(axes, path, source)
