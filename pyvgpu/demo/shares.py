"""Observed shares of the device's time: by completed kernels, and by the runs' counts.

The two are independent: a tenant reports how many of its kernels, all of the same duration, are
done; the region counts what the shim charged for them.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.demo.observations import SHARERS, EventKind, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.demo.observations import DemoSample, Observations

SETTLE_SECONDS = 0.5  # after the last sharer has started
LEAST_SECONDS = 1.0  # for which all must have run concurrently
RECENT_SECONDS = 1.0

Points = tuple[tuple[float, float], ...]  # seconds, and the ns used until then


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The time in which all sharers ran concurrently."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return self.end - self.begin

    def samples(self, seen: Observations) -> tuple[DemoSample, ...]:
        """Return the samples in the window."""
        return tuple(x for x in seen.samples if self.begin <= x.seconds <= self.end)


def window(seen: Observations) -> Window | None:
    """Return the time in which all sharers ran concurrently; None if it was too short.

    It begins once the idle tenant is running, too: on a busy machine that may take seconds.
    """
    spans = [seen.of(role, EventKind.SPUN) for role in SHARERS]
    if not all(spans) or not seen.samples:
        return None
    begin = max(events[0].seconds for events in spans) + SETTLE_SECONDS
    begin = max(begin, seen.samples[0].seconds)
    idle = seen.first(Role.IDLE, EventKind.HELD)
    if idle:
        begin = max(begin, idle.seconds)
    end = min(*(events[-1].seconds for events in spans), seen.samples[-1].seconds)
    return Window(begin, end) if end - begin >= LEAST_SECONDS else None


def of(seen: Observations, role: Role, within: Window) -> tuple[float, float]:
    """Return the share of *role*, 0 to 1: by its completed kernels, and by its region's count."""
    sources = (done(seen, role), counted(seen.samples, role))
    first, second = (share(points, within.begin, within.end) for points in sources)
    return first, second


def lost(seen: Observations, within: Window) -> float:
    """Return the part of the time, 0 to 1, in which sharers were runnable but not scheduled."""
    kept = [
        tuple((x.seconds, float(x.of(role).kept_ns)) for x in seen.samples) for role in SHARERS
    ]
    return min(1.0, sum(share(points, within.begin, within.end) for points in kept))


def done(seen: Observations, role: Role) -> Points:
    """Return the device time of the kernels that *role* has reported as done."""
    return tuple((event.seconds, float(event.ns)) for event in seen.of(role, EventKind.SPUN))


def counted(samples: Sequence[DemoSample], role: Role) -> Points:
    """Return the device time that the region of *role* has counted."""
    return tuple((sample.seconds, float(sample.of(role).busy_ns)) for sample in samples)


def recent(samples: Sequence[DemoSample], role: Role) -> float:
    """Return the share of *role* in the last second, by its region's count."""
    if not samples:
        return 0.0
    end = samples[-1].seconds
    begin = max(samples[0].seconds, end - RECENT_SECONDS)
    return share(counted(samples, role), begin, end)


def series(points: Points, end: float, step: float) -> Points:
    """Return the share in each interval of *step* seconds until *end*, at the end of each."""
    times = [step * number for number in range(1, int(end / step) + 1)]
    return tuple((time, share(points, time - step, time)) for time in times)


def share(points: Points, begin: float, end: float) -> float:
    """Return the part of the time from *begin* to *end* that was used."""
    if end <= begin or not points:
        return 0.0
    return (_used(points, end) - _used(points, begin)) / (end - begin) / 1e9


def _used(points: Points, seconds: float) -> float:
    """Return the ns used until *seconds*, by linear interpolation."""
    place = bisect.bisect_right(points, (seconds, float("inf")))
    if place in (0, len(points)):
        return points[0][1] if place == 0 else points[-1][1]
    (before, low), (after, high) = points[place - 1], points[place]
    return low + (high - low) * (seconds - before) / (after - before)
