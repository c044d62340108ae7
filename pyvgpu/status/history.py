"""Bounded history of the last minutes, and of the last day. Pure.

The day has a JSON form, in which a program stores it over its own restart.
"""

from __future__ import annotations

import array
import collections
import itertools
import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

POINTS = 60  # of each line
STEP_SECONDS = 300  # of a point of the last day
DAY_POINTS = 86_400 // STEP_SECONDS
_UNKNOWN = -1  # in a step without a sample; all values are 0 or more
_MOST = (1 << 63) - 1

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
        self.step = 0
        self._past = [array.array("q") for _ in range(values)]

    @classmethod
    def read(cls, saved: Any) -> _Means:
        """Return what :attr:`saved` was; ValueError if it is not of that form."""
        try:
            step, rows = saved["step"], saved["values"]
            made = cls(len(rows))
            numbers = [step, *itertools.chain.from_iterable(rows)]
            valid = all(type(number) is int for number in numbers) and min(numbers) >= _UNKNOWN
            (points,) = {len(row) for row in rows}
            if not valid or max(numbers) > _MOST or not 0 < points <= DAY_POINTS:
                raise ValueError("a value is out of range")
            made._past = [array.array("q", row[:-1]) for row in rows]
            made._sums = [max(row[-1], 0) for row in rows]
        except (KeyError, TypeError) as exc:
            raise ValueError("no steps and values") from exc
        made._count, made.step = 1, step
        return made

    @property
    def values(self) -> int:
        """The number of values."""
        return len(self._sums)

    @property
    def saved(self) -> dict[str, Any]:
        """All steps in a form for JSON; the last one counts as one sample when it is read."""
        rows = zip(self._past, self._now(), strict=True)
        return {"step": self.step, "values": [[*past, mean][-DAY_POINTS:] for past, mean in rows]}

    def add(self, values: Values, step: int) -> None:
        if self._count and step > self.step:
            missing = [_UNKNOWN] * min(step - self.step - 1, DAY_POINTS)
            for past, mean in zip(self._past, self._now(), strict=True):
                past.append(mean)
                past.extend(missing)
                del past[:-DAY_POINTS]
            self._sums = [0] * len(self._sums)
            self._count = 0
        if not self._count:
            self.step = step  # an earlier one if the clock was set back
        self._sums = [sum(pair) for pair in zip(self._sums, values, strict=True)]
        self._count += 1

    def _now(self) -> list[int]:
        return [-(-total // self._count) for total in self._sums]  # rounded up: use is not lost

    def points(self) -> list[list[int | None]]:
        """Return the points of each value; the last is of the step that is not over yet."""
        rows = [[*past, mean] for past, mean in zip(self._past, self._now(), strict=True)]
        return [[None if it == _UNKNOWN else it for it in row[-DAY_POINTS:]] for row in rows]


class DayHistory:
    """The last day of each key of the last sample, as means of STEP_SECONDS each."""

    def __init__(self) -> None:
        self._means: dict[str, _Means] = {}
        self._restored: dict[str, _Means] = {}  # of keys that no sample has had since
        self._step = 0  # of the last sample; 0: there was none

    def add(self, now: Mapping[str, Values], at: float) -> bool:
        """Add a sample, taken *at* seconds since the epoch; missing keys are dropped.

        Return whether the step of the sample before is over, so that it is time to store the day.
        """
        step = int(at // STEP_SECONDS)
        means = {}
        for key, values in now.items():
            found = self._means.get(key) or self._restored.pop(key, None)
            if found is None or found.values != len(values):
                found = _Means(len(values))
            found.add(values, step)
            means[key] = found
        self._means = means
        is_over = 0 < self._step < step
        self._step = step
        return is_over

    def lines(self, key: str, names: Iterable[str]) -> dict[str, list[int | None] | int]:
        """Return the series of a key's first values by *names*, the newest point last.

        A point is None if there was no sample within it; *seconds* is the length of each.
        """
        means = self._means.get(key)
        rows: Iterable[list[int | None]] = means.points() if means else itertools.repeat([])
        return {"seconds": STEP_SECONDS, **dict(zip(names, rows, strict=False))}

    def text(self) -> str:
        """Return the day as JSON, some 3 kB for each key of two values."""
        days = {key: means.saved for key, means in (self._restored | self._means).items()}
        return json.dumps({"seconds": STEP_SECONDS, "days": days}, separators=(",", ":"))

    def restore(self, text: str | bytes, at: float) -> None:
        """Let the samples from *at* on continue the day in *text*, which :meth:`text` returned.

        Days that end in the future, or more than a day ago, are left out. ValueError if *text* is
        not of that form.
        """
        now = int(at // STEP_SECONDS)
        try:
            document = json.loads(text)
            if document["seconds"] != STEP_SECONDS:
                raise ValueError(f"its steps are not of {STEP_SECONDS} s")
            days = {str(key): _Means.read(saved) for key, saved in document["days"].items()}
        except (KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise ValueError("it has no days") from exc
        self._restored = {
            key: means for key, means in days.items() if now - DAY_POINTS < means.step <= now
        }
