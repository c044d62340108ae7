"""Bounded in-memory history of the last minutes. Pure."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

POINTS = 60  # of each line

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
