"""What the last minutes were like on this node: noted at each look, for the status page.

Of the agent's memory it takes what is bounded: so many points of each container and device that
there is, and so many events.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin import metrics, status, usage
from pyvgpu.status import history

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.deviceplugin import events
    from pyvgpu.deviceplugin.metrics import Sources

MOST_EVENTS = 50
JUDGED_POINTS = 7  # half a minute


class Recent:
    """Notes what there is; whoever looks and whoever asks are other threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines: history.History[status.Key] = history.History()
        self._states: dict[status.Key, status.State] = {}
        self._told: collections.deque[status.Told] = collections.deque(maxlen=MOST_EVENTS)
        self._telling = threading.Lock()
        self._at = 0.0

    def tell(self, event: events.Event) -> None:
        """Note an event that was written."""
        with self._telling:
            self._told.append(status.Told(self._clock(), event))

    def look(self, sources: Sources) -> None:
        """Note how everything is now."""
        parts = list(metrics.parts(sources))
        now = {it.labels: status.points(it.use) for it in parts}
        for stand in metrics.stands(sources, parts):
            answer = stand.answer
            now[(stand.device.uuid,)] = round(1000 * answer.busy), answer.used_bytes >> 20
        self._lines.add(now)
        self._states = {
            it.labels: status.state_at(
                it, self._lines.points(it.labels)[-JUDGED_POINTS:], usage.PERIOD_SECONDS
            )
            for it in parts
        }
        self._at = self._clock()

    def document(
        self, node: str, sources: Sources, troubles: Sequence[tuple[str, str]]
    ) -> dict[str, Any]:
        """Return what the page of *node* shows now."""
        parts = list(metrics.parts(sources))
        with self._telling:
            told = tuple(self._told)
        seen = status.Facts(
            node=node,
            at=self._at,
            stands=tuple(metrics.stands(sources, parts)),
            states=self._states,
            lines=self._lines,
            unbound=sum(not it.bound for it in sources.grants()),
            findings=sources.findings(),
            told=told,
            troubles=troubles,
        )
        return status.document(seen, usage.PERIOD_SECONDS)
