"""Recent history of this node for the status page: usage points, states and events.

Its memory is bounded: a fixed number of points for each existing container and device, a day for
each device, and a fixed number of events.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin.telemetry import metric_families, status, usage
from pyvgpu.status import history, states

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.deviceplugin.grants import events
    from pyvgpu.deviceplugin.telemetry.metric_families import MetricSources

MOST_EVENTS = 50
JUDGED_POINTS = 7  # half a minute


class Recent:
    """Collects the history; the recording thread and the reading threads differ."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines: history.History[status.Key] = history.History()
        self._days: history.DayHistory[status.Key] = history.DayHistory()
        self._states: dict[status.Key, states.HolderState] = {}
        self._events: collections.deque[status.EventRecord] = collections.deque(maxlen=MOST_EVENTS)
        self._lock = threading.Lock()
        self._at = 0.0

    def tell(self, event: events.GrantEvent) -> None:
        """Record an event that was written."""
        with self._lock:
            self._events.append(status.EventRecord(self._clock(), event))

    def look(self, sources: MetricSources) -> None:
        """Record the current usage and states."""
        parts = list(metric_families.parts(sources))
        now = {part.labels: status.points(part.use) for part in parts}
        devices: dict[status.Key, history.Values] = {}
        for sample in metric_families.samples(sources, parts):
            answer = sample.answer
            busy = round(1000 * (answer.busy or 0.0))
            devices[(sample.device.uuid,)] = busy, answer.used_bytes >> 20
        self._lines.add(now | devices)
        self._days.add(devices, self._clock())
        self._states = {
            part.labels: status.state_at(
                part, self._lines.points(part.labels)[-JUDGED_POINTS:], usage.PERIOD_SECONDS
            )
            for part in parts
        }
        self._at = self._clock()

    def document(
        self, node: str, sources: MetricSources, troubles: Sequence[tuple[str, str]]
    ) -> dict[str, Any]:
        """Return the current document of *node*'s status page."""
        parts = list(metric_families.parts(sources))
        with self._lock:
            records = tuple(self._events)
        seen = status.Facts(
            node=node,
            at=self._at,
            samples=tuple(metric_families.samples(sources, parts)),
            states=self._states,
            lines=self._lines,
            days=self._days,
            unbound=sum(not grant.bound for grant in sources.grants()),
            findings=sources.findings(),
            records=records,
            troubles=troubles,
        )
        return status.document(seen, usage.PERIOD_SECONDS)
