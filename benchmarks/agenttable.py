"""The record of `make bench-agent` as figures, each with its goal, and as the page's table."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from sidecartable import Line, percentile, table

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One figure, and what it is held against."""

    title: str
    value: float
    goal: float
    unit: str
    nothing: float | None = None  # the same of a plugin that does nothing
    adds: bool = False  # the goal is for what we take beyond that

    @property
    def used(self) -> float:
        """What of the goal is used."""
        return (self.value - (self.nothing or 0) * self.adds) / self.goal

    @property
    def line(self) -> Line:
        """The figure in words."""
        beside = "" if self.nothing is None else f", a plugin of nothing {self._say(self.nothing)}"
        goal = f"{'adds ' if self.adds else ''}{self.goal:g} {self.unit}"
        return Line(self.title, self._say(self.value) + beside, goal, self.used <= 1)

    def _say(self, value: float) -> str:
        return f"{value:.{2 if value < 10 else 1}f} {self.unit}"


def of_record(path: Path) -> str:
    """Return the table of the record in a file."""
    return table([it.line for it in figures(json.loads(path.read_text()))])


def figures(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record, in their order."""
    containers = record["busy"]["containers"]

    def taken(name: str, part: int, side: str = "agent") -> float:
        return 1e3 * percentile(record[name][side], part)

    return [
        Figure(f"Allocate, p{part}", taken("allocate", part), goal, "ms", nothing)
        for part, goal in ((50, 0.7), (99, 2))
        for nothing in [taken("allocate", part, "nothing")]
    ] + [
        Figure(
            "PreStartContainer of both resources, 20 pods at once, p99",
            taken("start", 99),
            25,
            "ms",
            taken("start", 99, "nothing"),
            adds=True,
        ),
        Figure(
            f"/metrics of {containers} containers, p99",
            1e3 * percentile(record["scrape"], 99),
            20,
            "ms",
        ),
        Figure("resident memory, the same", record["busy"]["resident"] / MIB, 64, "MiB"),
        Figure("anonymous memory, the same", record["busy"]["anonymous"] / MIB, 36, "MiB"),
        Figure("no container: of a core", record["idle"]["percent"], 0.3, "%"),
        Figure(f"{containers} containers: of a core", record["busy"]["percent"], 2, "%"),
    ]
