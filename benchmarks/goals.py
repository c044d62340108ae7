"""Figures that are held against a goal each, their table, and how a benchmark ends with it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import host
import sidecartable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """The same figure of something else, measured in turn with ours."""

    value: float
    of: str = "a plugin of nothing"


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One figure, and what it is held against."""

    title: str
    value: float
    goal: float | None  # None: shown, not judged
    unit: str
    beside: Beside | None = None
    adds: bool = False  # the goal is for what we take beyond that
    least: bool = False  # the goal is what must be reached, not what may be taken
    part: Beside | None = None  # what ours waits for, which *beside* does not

    @property
    def used(self) -> float:
        """What of the goal is used, or how far it is to it; more than 1 is a miss."""
        if self.goal is None:
            return 0.0
        if self.least:
            return self.goal / self.value
        return (self.value - (self.beside.value if self.beside and self.adds else 0)) / self.goal

    @property
    def past(self) -> bool:
        """Whether the goal is missed, but not by us: nothing and what we wait for take as long."""
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
        others = [it for it in (self.part, self.beside) if it]
        beside = "".join(f", {it.of} {self._say(it.value)}" for it in others)
        word = "at least " * self.least + "adds " * self.adds
        goal = "none" if self.goal is None else f"{word}{self.goal:g} {self.unit}"
        value = self._say(self.value) + beside
        return sidecartable.Line(self.title, value, goal, self.kept, past=self.past)

    def _say(self, value: float) -> str:
        return f"{value:.{2 if value < 10 else 1}f} {self.unit}"


def table(figures: Sequence[Figure]) -> str:
    """Return the figures in Markdown."""
    return sidecartable.table([it.line for it in figures])


def say(figures: Sequence[Figure]) -> int:
    """Print the figures and how far they may be believed; return the exit code: 1 for a miss."""
    print(table(figures))
    print(host.remark())
    return 1 if missed(figures) else 0


def missed(figures: Sequence[Figure]) -> bool:
    """Tell whether one of the figures has missed its goal."""
    return not all(it.kept for it in figures)
