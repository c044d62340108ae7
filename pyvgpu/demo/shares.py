"""The shares of the device's time, as they were seen: by kernels done, and by the runs' counts.

The two know nothing of each other: a tenant reports which of its kernels, all of one length, are
done; the region counts what the shim charged for them.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.demo.facts import SHARERS, Kind, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.demo.facts import Observations, Sample

SETTLE_SECONDS = 0.5  # after the last of them has begun
LEAST_SECONDS = 1.0  # in which all must have worked beside each other
RECENT_SECONDS = 1.0

Points = tuple[tuple[float, float], ...]  # seconds, and the ns that were used until then


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The time in which all who divide the device worked beside each other."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    def samples(self, seen: Observations) -> tuple[Sample, ...]:
        """Return the looks at the device in it."""
        return tuple(x for x in seen.samples if self.begin <= x.seconds <= self.end)


def window(seen: Observations) -> Window | None:
    """Return when all worked beside each other; None if that was not for long enough.

    It begins once the idle tenant is there too: on a busy machine that may take seconds.
    """
    spans = [seen.of(role, Kind.SPUN) for role in SHARERS]
    if not all(spans) or not seen.samples:
        return None
    begin = max(events[0].seconds for events in spans) + SETTLE_SECONDS
    begin = max(begin, seen.samples[0].seconds)
    idle = seen.first(Role.IDLE, Kind.HELD)
    if idle:
        begin = max(begin, idle.seconds)
    end = min(*(events[-1].seconds for events in spans), seen.samples[-1].seconds)
    return Window(begin, end) if end - begin >= LEAST_SECONDS else None


def of(seen: Observations, role: Role, within: Window) -> tuple[float, float]:
    """Return the share of *role*, 0 to 1: by the kernels that it completed, and by its count."""
    sources = (done(seen, role), counted(seen.samples, role))
    first, second = (share(points, within.begin, within.end) for points in sources)
    return first, second


def lost(seen: Observations, within: Window) -> float:
    """Return the part of the time, 0 to 1, in which the machine kept those from running."""
    kept = [
        tuple((x.seconds, float(x.of(role).kept_ns)) for x in seen.samples) for role in SHARERS
    ]
    return min(1.0, sum(share(points, within.begin, within.end) for points in kept))


def done(seen: Observations, role: Role) -> Points:
    """Return the time in the kernels that *role* reported as done."""
    return tuple((event.seconds, float(event.ns)) for event in seen.of(role, Kind.SPUN))


def counted(samples: Sequence[Sample], role: Role) -> Points:
    """Return the time that the region of *role* counts."""
    return tuple((sample.seconds, float(sample.of(role).busy_ns)) for sample in samples)


def recent(samples: Sequence[Sample], role: Role) -> float:
    """Return the share that *role* had of the last second, by its count."""
    if not samples:
        return 0.0
    end = samples[-1].seconds
    begin = max(samples[0].seconds, end - RECENT_SECONDS)
    return share(counted(samples, role), begin, end)


def series(points: Points, end: float, step: float) -> Points:
    """Return the share of every *step* seconds until *end*, at the end of each."""
    times = [step * number for number in range(1, int(end / step) + 1)]
    return tuple((time, share(points, time - step, time)) for time in times)


def share(points: Points, begin: float, end: float) -> float:
    """Return the part of the time from *begin* to *end* that was used."""
    if end <= begin or not points:
        return 0.0
    return (_used(points, end) - _used(points, begin)) / (end - begin) / 1e9


def _used(points: Points, seconds: float) -> float:
    """Return what was used until *seconds*, on the straight line between two points."""
    place = bisect.bisect_right(points, (seconds, float("inf")))
    if place in (0, len(points)):
        return points[0][1] if place == 0 else points[-1][1]
    (before, low), (after, high) = points[place - 1], points[place]
    return low + (high - low) * (seconds - before) / (after - before)
