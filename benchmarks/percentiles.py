"""Percentiles by the nearest rank: always one of the values that were measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that *part* percent of *values* do not exceed; 0 is the smallest."""
    ordered = sorted(values)
    return ordered[max(math.ceil(part / 100 * len(ordered)) - 1, 0)]


def summary(values: Sequence[float]) -> list[float]:
    """Return the percentiles 1 to 100 of *values*, or all of them if they are no more.

    A percentile of a summary is that of all values, but for fractions of a percent.
    """
    if len(values) <= 100:
        return list(values)
    return [percentile(values, part) for part in range(1, 101)]
