"""Figures with goals: their comparison, their table, and the benchmark's exit code."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import host
import sidecartable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """The same figure of a baseline, measured alternately with ours."""

    value: float
    of: str = "a plugin that does nothing"


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One figure and its goal."""

    title: str
    value: float
    goal: float | None  # None: shown, not evaluated
    unit: str
    beside: Beside | None = None
    adds: bool = False  # the goal is for the excess over the baseline
    least: bool = False  # the goal is a minimum, not a maximum
    part: Beside | None = None  # a part that ours waits for and *beside* does not

    @property
    def used(self) -> float:
        """The ratio of value and goal; more than 1 is a miss."""
        if self.goal is None:
            return 0.0
        if self.least:
            return self.goal / self.value
        return (self.value - (self.beside.value if self.beside and self.adds else 0)) / self.goal

    @property
    def past(self) -> bool:
        """Whether the baseline and the part that ours waits for alone miss the goal."""
        if not (self.part and self.beside) or self.used <= 1:
            return False
        return self.value <= self.part.value + self.beside.value

    @property
    def kept(self) -> bool:
        """Whether the goal is reached, or would be missed without us."""
        return self.used <= 1 or self.past

    @property
    def line(self) -> sidecartable.Line:
        """The figure in words."""
        others = [other for other in (self.part, self.beside) if other]
        beside = "".join(f", {other.of} {self._say(other.value)}" for other in others)
        word = "at least " * self.least + "adds " * self.adds
        goal = "none" if self.goal is None else f"{word}{self.goal:g} {self.unit}"
        value = self._say(self.value) + beside
        return sidecartable.Line(self.title, value, goal, self.kept, past=self.past)

    def _say(self, value: float) -> str:
        return f"{value:.{2 if value < 10 else 1}f} {self.unit}"


def table(figures: Sequence[Figure]) -> str:
    """Return the figures in Markdown."""
    return sidecartable.table([figure.line for figure in figures])


def say(figures: Sequence[Figure]) -> int:
    """Print the figures and their reliability; return the exit code: 1 for a miss."""
    print(table(figures))
    print(host.remark())
    return 1 if missed(figures) else 0


def missed(figures: Sequence[Figure]) -> bool:
    """Return whether one of the figures has missed its goal."""
    return not all(figure.kept for figure in figures)
