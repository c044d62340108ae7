"""Recent history of this node for the status page: usage points, states and events.

Its memory is bounded: a fixed number of points for each existing container and device, a day for
each device, and a fixed number of events. The days are stored in the agent's state folder, so that
they continue after a restart of the agent or the node.

status-history.json    {"seconds": 300, "days": {"GPU-8c9f5a3e-...": {"step": 5967812, "values":
                       [[40, -1, 38], [1024, -1, 1024]]}}}: the step of the last point, in steps
                       since the epoch, and the points; -1: there was no sample
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin.telemetry import metric_families, status, usage
from pyvgpu.status import history, states
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyvgpu.deviceplugin.grants import events
    from pyvgpu.deviceplugin.telemetry.metric_families import MetricSources

log = logging.getLogger(__name__)

FILE = "status-history.json"  # in the state folder
MOST_EVENTS = 50
EVALUATED_POINTS = 7  # half a minute
MOST_BYTES = 4 << 20  # of the file; a device takes some 3 kB


class Recent:
    """Collects the history: one thread records samples, others may record events and read."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines: history.History[status.Key] = history.History()
        self._days = history.DayHistory()
        self._file: Path | None = None
        self._unsaved = ""  # why the last attempt to store the days failed
        self._states: dict[status.Key, states.HolderState] = {}
        self._events: collections.deque[status.EventRecord] = collections.deque(maxlen=MOST_EVENTS)
        self._lock = threading.Lock()
        self._at = 0.0

    def restore(self, state: Path) -> None:
        """Continue the days stored in the folder *state*, and store them there from now on.

        An unreadable file is reported and replaced: it is worth less than the agent.
        """
        self._file = state / FILE
        try:
            with self._file.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            self._days.restore(content, self._clock())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as exc:
            log.warning("the charts of the last day start empty: %s: %s", self._file, exc)

    def save(self) -> None:
        """Store the days, if there is a folder; a failure is logged once until it is over."""
        if self._file is None:
            return
        try:
            atomic_files.write(self._file, self._days.text().encode())
            self._unsaved = ""
        except OSError as exc:
            if str(exc.strerror) != self._unsaved:
                log.warning("cannot store the charts of the last day: %s: %s", self._file, exc)
            self._unsaved = str(exc.strerror)

    def add_event(self, event: events.GrantEvent) -> None:
        """Record an event that was written."""
        with self._lock:
            self._events.append(status.EventRecord(self._clock(), event))

    def poll(self, sources: MetricSources) -> None:
        """Record the current usage and states."""
        parts = list(metric_families.parts(sources))
        now = {part.labels: status.points(part.use) for part in parts}
        devices: dict[str, history.Values] = {}
        for sample in metric_families.samples(sources, parts):
            answer = sample.answer
            busy = round(1000 * (answer.busy or 0.0))
            devices[sample.device.uuid] = busy, answer.used_bytes >> 20
        self._lines.add(now | {(uuid,): values for uuid, values in devices.items()})
        if self._days.add(devices, self._clock()):
            self.save()
        self._states = {
            part.labels: status.state_at(
                part, self._lines.points(part.labels)[-EVALUATED_POINTS:], usage.PERIOD_SECONDS
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
