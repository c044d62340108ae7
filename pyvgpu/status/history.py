"""Bounded in-memory history of the last minutes, and of the last day. Pure."""

from __future__ import annotations

import array
import collections
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

POINTS = 60  # of each line
STEP_SECONDS = 300  # of a point of the last day
DAY_POINTS = 86_400 // STEP_SECONDS
_UNKNOWN = -1  # in a step without a sample; all values are 0 or more

Key = TypeVar("Key")
Values = tuple[int, ...]


class History(Generic[Key]):
    """A time series for each key of the last sample."""

    def __init__(self, points: int = POINTS) -> None:
        self._points = points
        self._lines: dict[Key, collections.deque[Values]] = {}

    def add(self, now: Mapping[Key, Values]) -> None:
        """Add a sample; the series of missing keys are dropped."""
        lines = {}
        for key, values in now.items():
            line = self._lines.get(key)
            lines[key] = collections.deque(maxlen=self._points) if line is None else line
            lines[key].append(values)
        self._lines = lines  # concurrent readers keep the old ones

    def points(self, key: Key) -> tuple[Values, ...]:
        """Return the points of a key, the newest last."""
        return tuple(self._lines.get(key, ()))

    def lines(self, key: Key, names: Iterable[str]) -> dict[str, list[int]]:
        """Return the series of a key's first values by *names*, the newest point last."""
        points = self.points(key)
        return {name: [point[at] for point in points] for at, name in enumerate(names)}


class _Means:
    """The means of one key's values in each step; about 1.2 kB for each value."""

    def __init__(self, values: int) -> None:
        self._sums = [0] * values
        self._count = 0
        self._step = 0
        self._past = [array.array("q") for _ in range(values)]

    def add(self, values: Values, step: int) -> None:
        if self._count and step > self._step:
            missing = [_UNKNOWN] * min(step - self._step - 1, DAY_POINTS)
            for past, mean in zip(self._past, self._now(), strict=True):
                past.append(mean)
                past.extend(missing)
                del past[:-DAY_POINTS]
            self._sums = [0] * len(self._sums)
            self._count = 0
        if not self._count:
            self._step = step  # an earlier one if the clock was set back
        self._sums = [sum(pair) for pair in zip(self._sums, values, strict=True)]
        self._count += 1

    def _now(self) -> list[int]:
        return [-(-total // self._count) for total in self._sums]  # rounded up: use is not lost

    def points(self) -> list[list[int | None]]:
        """Return the points of each value; the last is of the step that is not over yet."""
        rows = [[*past, mean] for past, mean in zip(self._past, self._now(), strict=True)]
        return [[None if it == _UNKNOWN else it for it in row[-DAY_POINTS:]] for row in rows]


class DayHistory(Generic[Key]):
    """The last day of each key of the last sample, as means of STEP_SECONDS each."""

    def __init__(self) -> None:
        self._means: dict[Key, _Means] = {}

    def add(self, now: Mapping[Key, Values], at: float) -> None:
        """Add a sample, taken *at* seconds since the epoch; missing keys are dropped."""
        means = {}
        for key, values in now.items():
            means[key] = self._means.get(key) or _Means(len(values))
            means[key].add(values, int(at // STEP_SECONDS))
        self._means = means

    def lines(self, key: Key, names: Iterable[str]) -> dict[str, list[int | None] | int]:
        """Return the series of a key's first values by *names*, the newest point last.

        A point is None if there was no sample within it; *seconds* is the length of each.
        """
        means = self._means.get(key)
        rows: Iterable[list[int | None]] = means.points() if means else itertools.repeat([])
        return {"seconds": STEP_SECONDS, **dict(zip(names, rows, strict=False))}
