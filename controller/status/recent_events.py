"""Watch for the newest Events that pyvgpu's components recorded; keeps a bounded number."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

from pyvgpu.controller.scheduler.shell import scheduling_events
from pyvgpu.kube import informer, objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.kube import apiserver
    from pyvgpu.kube.objects import Object

EVENTS = "/api/v1/events"
SOURCES = ("pyvgpu", scheduling_events.COMPONENT)  # the agents and the scheduler
MOST = 50  # events shown


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ShownEvent:
    """An event as the page shows it; the newest compares greatest."""

    at: str  # in the API server's notation
    object: str  # namespace/name of the object that it is about
    kind: str
    reason: str
    text: str


def read(event: Object) -> ShownEvent:
    """Return what the page shows of *event*."""
    about = objects.section(event, "involvedObject")
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return ShownEvent(
        str(at or objects.section(event, "metadata").get("creationTimestamp") or ""),
        f"{about.get('namespace')}/{about.get('name')}",
        str(event.get("type") or ""),
        str(event.get("reason") or ""),
        str(event.get("message") or ""),
    )


class RecentEvents:
    """Watches events and drops the older ones."""

    def __init__(
        self, api: apiserver.ApiServer, counting: informer.Counting | None = None
    ) -> None:
        self._events: dict[str, ShownEvent] = {}
        self._lock = threading.Lock()
        self._followed = [
            informer.Informer(
                api, EVENTS, {"fieldSelector": f"source={name}"}, self._note, _nothing, counting
            )
            for name in SOURCES
        ]

    @property
    def parts(self) -> tuple[Callable[[threading.Event], None], ...]:
        """The functions to run until an event is set, each in a thread."""
        return tuple(events.run for events in self._followed)

    def document(self) -> list[dict[str, str]]:
        """Return the events as the page takes them, the newest first."""
        with self._lock:
            newest = sorted(self._events.values(), reverse=True)[:MOST]
        return [
            {
                "at": event.at,
                "type": event.kind,
                "reason": event.reason,
                "object": event.object,
                "text": event.text,
            }
            for event in newest
        ]

    def _note(self, event: Object) -> None:
        key = informer.key_of(event)
        with self._lock:
            self._events[key] = read(event)
            if len(self._events) > 4 * MOST:
                newest = sorted(self._events, key=lambda key: self._events[key], reverse=True)
                self._events = {key: self._events[key] for key in newest[:MOST]}


def _nothing(_key: str) -> None:
    """Do nothing: the page reads the events on request."""
