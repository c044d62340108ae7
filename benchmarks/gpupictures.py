"""Chart of a GPU kit record: time shares, expected and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pictures import BLUE, GREY, INK, RED, ROW_INCHES, new_axes, save

from pyvgpu.calibration.guarantees import POINTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyvgpu.calibration.guarantees import TimeShare


def draw_shares(shares: Sequence[TimeShare], path: Path, source: str) -> None:
    """Draw a bar for what each had, grey where nothing was guaranteed, and a mark at its vcore."""
    axes = new_axes([share.tenant for share in shares], ROW_INCHES)
    for place, share in enumerate(shares):
        colour = BLUE if abs(share.had - share.wanted) <= POINTS else RED
        axes.barh(place, share.had, height=0.62, color=colour if share.guaranteed else GREY)
        axes.plot(
            [share.wanted, share.wanted], [place - 0.42, place + 0.42], color=INK, linewidth=2
        )
        axes.text(102, place, f"{share.had:.1f} of {share.wanted}", va="center", fontsize=8)
    axes.set_xlim(0, 118)
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.set_xlabel("of the device's time; the mark is the vcore, grey bars are not evaluated")
    save(axes, path, source)
