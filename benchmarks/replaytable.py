"""Tables of a `make bench-replay` record: recorded programs with shares, alone and in pairs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 1.05  # of the ideal time
OVER_POINTS = 2.0  # above its share
PAIR_HEADINGS = ("program", "vcore", "beside", "time", "without shares", "share")


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A program alone with one vcore, or beside another; times are ratios to the ideal."""

    title: str
    time: float
    control: float | None  # of the same pair on the bare driver
    over: float | None = None  # what it had, in percent of the device, if above its share

    @property
    def bound(self) -> float:
        """The longest time that is within the bound, also of the control if that is longer."""
        return MOST * max(1.0, self.control or 0.0)

    @property
    def is_in_time(self) -> bool:
        """Whether it took no longer."""
        return self.time <= self.bound

    @property
    def kept(self) -> bool:
        """Whether it took no longer, and had no more than its share."""
        return self.is_in_time and self.over is None


def lines(record: dict[str, Any]) -> list[Line]:
    """Return all rows with a share, in their order."""
    return [_line(row) for row in record["rows"] if row["vcore"] is not None]


def _line(row: dict[str, Any]) -> Line:
    over = row["vcore"] is not None and row["held"] > row["vcore"] + OVER_POINTS
    return Line(
        _title(row), row["to_ideal"], row.get("control_to_ideal"), row["held"] if over else None
    )


def table(record: dict[str, Any]) -> str:
    """Return both tables and a sentence with their totals, in Markdown."""
    rows = record["rows"]
    alone = [row for row in rows if row["beside"] is None]
    pairs = [row for row in rows if row["beside"] is not None]
    parts = [_count(alone, "alone"), _table_of_those_alone(alone)]
    if pairs:
        parts += [_count(pairs, "in pairs"), _table_of_pairs(pairs)]
    return "\n".join(parts)


def _count(rows: Sequence[dict[str, Any]], where: str) -> str:
    found = lines({"rows": list(rows)})
    kept = sum(line.kept for line in found)
    return f"*{where[0].upper()}{where[1:]}*: {kept} of {len(found)} within the bound.\n"


def _table_of_those_alone(rows: Sequence[dict[str, Any]]) -> str:
    vcores = sorted({row["vcore"] for row in rows if row["vcore"] is not None})
    heads = ["program", "busy alone", "no share", *(f"vcore {vcore}" for vcore in vcores)]
    found = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for trace in dict.fromkeys(row["trace"] for row in rows):
        own = {row["vcore"]: row for row in rows if row["trace"] == trace}
        cells = [trace, f"{next(iter(own.values()))['bare_busy']:.0f} %"]
        cells += [_time_alone(own[vcore]) for vcore in (None, *vcores)]
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found) + "\n"


def _table_of_pairs(rows: Sequence[dict[str, Any]]) -> str:
    found = [f"| {' | '.join(PAIR_HEADINGS)} |", "|---|---:|---|---:|---:|---:|"]
    for row in rows:
        cells = (
            row["trace"],
            str(row["vcore"]),
            row["beside"],
            _time(row),
            f"{row['control_to_ideal']:.2f}",
            f"{row['held']:.1f} %" if _line(row).over is None else f"**{row['held']:.1f} %**",
        )
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found) + "\n"


def _time(row: dict[str, Any]) -> str:
    line = _line(row)
    return f"{line.time:.2f}" if line.is_in_time else f"**{line.time:.2f}**"


def _time_alone(row: dict[str, Any]) -> str:
    over = _line(row).over
    return _time(row) if over is None else f"{_time(row)} (**{over:.1f} %**)"


def _title(row: dict[str, Any]) -> str:
    beside = f" beside {row['beside']}" if row["beside"] else ""
    return f"{row['trace']} at {row['vcore']}{beside}"
