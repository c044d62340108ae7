"""Scores of a trace: shares in windows, and their errors.

Pure functions of a trace. Shares and errors are percent of the device's time.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scene_runs import Trace

WHOLE = 100.0
SECOND_NS = 1_000_000_000
SETTLED_POINTS = 3.0
STEP_NS = 5_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Had:
    """Cumulative device time of one tenant; interpolated linearly between two moments."""

    at_ns: Sequence[int]
    had_ns: Sequence[int]

    def by(self, moment_ns: float) -> float:
        """Return the nanoseconds it had had by that moment."""
        after = bisect.bisect_right(self.at_ns, moment_ns)
        if after == 0:
            return self.had_ns[0]
        if after == len(self.at_ns):
            return self.had_ns[-1]
        left, right = self.at_ns[after - 1], self.at_ns[after]
        part = (moment_ns - left) / (right - left)
        return self.had_ns[after - 1] + part * (self.had_ns[after] - self.had_ns[after - 1])

    def share(self, begin_ns: float, end_ns: float) -> float:
        """Return its share of the device between two moments, percent."""
        return WHOLE * (self.by(end_ns) - self.by(begin_ns)) / (end_ns - begin_ns)


@dataclasses.dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a share over an interval, window by window."""

    mean: float  # the share over all of it
    mean_error: float  # of the windows, absolute
    worst_error: float
    windows: tuple[float, ...]  # the share in each


@dataclasses.dataclass(frozen=True, slots=True)
class Settling:
    """Settling of a share after a change."""

    settled_ns: int | None  # from then on no window was off; None: it never settled
    overshoot: float  # the largest excess of a window
    within: int  # ns of the observed interval


def of(trace: Trace, tenant: int) -> Had:
    """Return the device time of one tenant of a trace."""
    return Had(trace.at_ns, trace.had_ns[tenant])


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """A share that is due: between two figures, which are the same unless all cannot be had."""

    least: float
    most: float

    def off(self, share: float) -> float:
        """Return by how many points a share is not what is due."""
        return max(self.least - share, share - self.most, 0.0)


def due(number: int, wanted: Sequence[float], capacity: float) -> Due:
    """Return what is due to one of several of a device of which *capacity* percent can be had.

    If they want more together, they may have it in proportion to what each wants, or evenly up to
    what each wants.
    """
    mine, total = wanted[number], sum(wanted)
    if total <= capacity:
        return Due(mine, mine)
    left, evenly = capacity, 0.0
    for count, each in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        evenly = max(evenly, min(each, left / count))
        left -= min(each, left / count)
    return Due(min(mine * capacity / total, mine, evenly), mine)


def evaluate(had: Had, expected: Due, begin_ns: int, end_ns: int, window_ns: int) -> Accuracy:
    """Score the whole windows between two moments against the share that was expected."""
    count = (end_ns - begin_ns) // window_ns
    edges = [begin_ns + window_ns * number for number in range(count + 1)]
    shares = tuple(had.share(*edges[i : i + 2]) for i in range(count))
    off = [expected.off(share) for share in shares]
    return Accuracy(had.share(edges[0], edges[-1]), sum(off) / count, max(off), shares)


def settle(had: Had, expected: Due, begin_ns: int, end_ns: int, window_ns: int) -> Settling:
    """Find from when on every window of that length kept to the share, and the most above it.

    Windows begin every STEP_NS from the moment of the change on; one that begins later than
    settled_ns after it is within SETTLED_POINTS, as far as was sampled.
    """
    begins = range(begin_ns, end_ns - window_ns + 1, STEP_NS)
    shares = [had.share(begin, begin + window_ns) for begin in begins]
    bad = [i for i, share in enumerate(shares) if expected.off(share) > SETTLED_POINTS]
    settled: int | None = 0 if not bad else (bad[-1] + 1) * STEP_NS
    if bad and bad[-1] == len(shares) - 1:
        settled = None
    return Settling(settled, max(shares) - expected.most, end_ns - begin_ns)
