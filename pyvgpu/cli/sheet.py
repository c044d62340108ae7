"""Tables that fit the terminal: narrow ones drop the least important columns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

_GAP = 3  # columns of the terminal between two of the table
_EDGES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, and how it shrinks when the terminal is narrow."""

    heading: str
    right: bool = False
    least: int | None = None  # minimum width; None: never truncated
    rank: int = 0  # the higher, the sooner it is dropped; 0: never
    tail: bool = False  # when truncated, keep the end


def fit(columns: Sequence[Column], wanted: Sequence[int], room: int) -> tuple[int, ...]:
    """Return the width of each column in *room*; 0 if it is dropped.

    *wanted* has the widths of the contents. Left-over room goes to truncated columns in order.
    """
    least = [
        width if column.least is None else min(column.least, width)
        for column, width in zip(columns, wanted, strict=True)
    ]
    kept = set(range(len(columns)))

    def taken() -> int:
        return sum(least[i] for i in kept) + _GAP * (len(kept) - 1) + _EDGES

    while taken() > room and any(columns[i].rank for i in kept):
        kept.remove(max(kept, key=lambda i: columns[i].rank))
    widths = [least[i] if i in kept else 0 for i in range(len(columns))]
    left = max(0, room - taken())
    for i in sorted(kept):
        more = min(left, wanted[i] - least[i])
        widths[i] += more
        left -= more
    return tuple(widths)


def table(columns: Sequence[Column], rows: Sequence[Sequence[Text]], room: int) -> Table:
    """Return a table no wider than *room*, if possible; rows may have fewer cells."""
    from rich import box
    from rich import table as rich_table

    wanted = [
        max([len(column.heading), *(len(row[i]) for row in rows if i < len(row))])
        for i, column in enumerate(columns)
    ]
    widths = fit(columns, wanted, room)
    shown = rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        if width:
            shown.add_column(
                column.heading,
                justify="right" if column.right else "left",
                no_wrap=True,
                min_width=width,
                max_width=width,
            )
    for row in rows:
        cells = zip(row, columns, widths, strict=False)
        shown.add_row(
            *(cell[-width:] if column.tail else cell for cell, column, width in cells if width)
        )
    return shown
