"""Summary table of a `make bench-share` record: the values nearest to their bounds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import patterns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GROUPS = {
    "alone": "alone, at 5, 10, 25, 50, 75, 90 and 95",
    "neighbours": "beside each other",
    "settling": "after a change",
    "elastic": "lent and taken back",
}
NEVER = 100.0  # times a bound: what did not come to rest
KEPT_HEADINGS = ("containers", "mean error", "worst window", "work done", "without the shim")
SETTLED_HEADINGS = ("containers", "settled", "overshoot", "without the shim")
PATTERN_HEADINGS = ("program", "law", "figure", "value", "bound", "control")
LAW_HEADINGS = ("row", "law", "of the bound")


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """The value that is nearest to its bound."""

    value: float
    bound: float

    @property
    def used(self) -> float:
        """How much of the bound it uses; 1 is all of it."""
        return self.value / self.bound


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Some rows of a record together."""

    title: str
    group: str
    figures: tuple[Figure, ...]
    throughput: float | None  # percent of what is due
    control: float  # of its bound, by the control that came nearest to passing; 0: there is none
    passed: bool
    evaluated: bool


def lines(record: dict[str, Any]) -> list[Line]:
    """Return a line for each program alone, over all vcores, and for each other row."""
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["rows"]:
        title = row["name"].partition(": ")[2] if row["group"] == "alone" else row["name"]
        together.setdefault((row["group"], title), []).append(row)
    return [_line(title, group, found) for (group, title), found in together.items()]


def _line(title: str, group: str, found: Sequence[dict[str, Any]]) -> Line:
    claims = [claim for row in found for claim in row["claims"]]
    control = [
        max(each.used for each in _figures(row["control"]))
        for row in found
        if row["control_fails"] is not None
    ]
    due = [claim["throughput"] for claim in claims if "throughput" in claim]
    return Line(
        title,
        group,
        _figures(claims),
        min(due) if due else None,
        min(control, default=0.0),
        all(row["passed"] for row in found),
        all(row.get("evaluated", True) for row in found),
    )


def _figures(claims: Iterable[dict[str, Any]]) -> tuple[Figure, ...]:
    kept = [claim for claim in claims if "mean_error" in claim]
    settled = [claim for claim in claims if "overshoot" in claim]
    pairs = (
        (kept, "mean_error", "mean_bound"),
        (kept, "worst_error", "worst_bound"),
        (settled, "settled_ms", "settled_bound_ms"),
        (settled, "overshoot", "overshoot_bound"),
    )
    return tuple(
        max(
            (Figure(_number(claim[key], claim[bound]), claim[bound]) for claim in chosen),
            key=lambda figure: figure.used,
        )
        for chosen, key, bound in pairs
        if chosen
    )


def _number(value: float | None, bound: float) -> float:
    return NEVER * bound if value is None else value  # it never came to rest


def table(record: dict[str, Any]) -> str:
    """Return all lines as tables in Markdown, one for each group."""
    found = lines(record)
    parts = []
    for group, words in GROUPS.items():
        chosen = [line for line in found if line.group == group]
        if chosen:
            parts.append(f"*{words[0].upper()}{words[1:]}*\n\n{_table(chosen)}")
    others = record.get("others", [])
    if others:
        parts.append(f"*Under other laws*\n\n{_table_of_laws(others)}")
        parts.append(f"*Launch patterns*\n\n{_table_of_patterns(others)}")
    return "\n".join(parts)


def _table_of_laws(others: Sequence[dict[str, Any]]) -> str:
    lines = _begin(LAW_HEADINGS, numbers=1)
    for row in others:
        if row["group"] in GROUPS:
            line = _line(row["name"], row["group"], [row])
            used = 100 * max(figure.used for figure in line.figures)
            figure = f"{used:.0f} %" if used < 100 * NEVER else "it does not settle"
            lines.append(f"| {_title(row)} | {row['law']} | {figure} |")
    return "\n".join(lines) + "\n"


def _table_of_patterns(others: Sequence[dict[str, Any]]) -> str:
    lines = _begin(PATTERN_HEADINGS, numbers=3)
    for row in others:
        for claim in row["claims"] if row["group"] == patterns.GROUP else ():
            value = f"{claim['value']:.2f}"
            cells = (
                _title(row),
                row["law"],
                claim["figure"],
                f"**{value}**" if claim["faults"] else value,
                patterns.words(claim),
                f"{claim['control']:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _title(row: dict[str, Any]) -> str:
    if not row["evaluated"]:
        return f"{row['name']} (shown, not evaluated)"
    return str(row["name"]) if row["passed"] else f"**{row['name']}** (missed)"


def _begin(headings: Sequence[str], *, numbers: int) -> list[str]:
    """Return the head of a table whose last *numbers* columns stand to the right."""
    marks = "---|" * (len(headings) - numbers) + "---:|" * numbers
    return [f"| {' | '.join(headings)} |", f"|{marks}"]


def _table(chosen: Sequence[Line]) -> str:
    kept = chosen[0].throughput is not None
    headings = KEPT_HEADINGS if kept else SETTLED_HEADINGS
    rows = _begin(headings, numbers=len(headings) - 1)
    for line in chosen:
        title = line.title if line.passed else f"**{line.title}** (not kept)"
        title = title if line.evaluated else f"{line.title} (shown, not evaluated)"
        times = "more than 99" if line.control >= NEVER else f"{line.control:.0f}"
        control = f"{times} times the bound" if line.control else ""
        rows.append(f"| {' | '.join([title, *_cells(line), control])} |")
    return "\n".join(rows) + "\n"


def _cells(line: Line) -> list[str]:
    first, second = line.figures
    if line.throughput is None:
        within = f"{first.value:.0f}" if first.used < NEVER else "never, instead"
        return [
            f"{within} of {first.bound:.0f} ms",
            f"{max(second.value, 0):.1f} of {second.bound:.1f}",
        ]
    return [
        f"{first.value:.2f} of {first.bound:.1f}",
        f"{second.value:.2f} of {second.bound:.1f}",
        f"{line.throughput:.1f} %",
    ]
