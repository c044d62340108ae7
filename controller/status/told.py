"""The newest events of ours, as the API server has them: so many, and no more."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

from pyvgpu.controller import objects
from pyvgpu.controller.scheduler.shell import telling
from pyvgpu.kube import informer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.objects import Object
    from pyvgpu.kube import apiserver

EVENTS = "/api/v1/events"
SOURCES = ("pyvgpu", telling.COMPONENT)  # of the agents, and of the scheduler
MOST = 50


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Told:
    """An event; the newest is the greatest."""

    at: str  # as the API server writes it
    who: str
    kind: str
    reason: str
    text: str


def read(event: Object) -> Told:
    """Return what is shown of an event."""
    about = objects.section(event, "involvedObject")
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return Told(
        str(at or objects.section(event, "metadata").get("creationTimestamp") or ""),
        f"{about.get('namespace')}/{about.get('name')}",
        str(event.get("type") or ""),
        str(event.get("reason") or ""),
        str(event.get("message") or ""),
    )


class Newest:
    """Follows events; of the older ones nothing is kept."""

    def __init__(
        self, api: apiserver.ApiServer, counting: informer.Counting | None = None
    ) -> None:
        self._events: dict[str, Told] = {}
        self._changing = threading.Lock()
        self._followed = [
            informer.Informer(
                api, EVENTS, {"fieldSelector": f"source={it}"}, self._note, _nothing, counting
            )
            for it in SOURCES
        ]

    @property
    def parts(self) -> tuple[Callable[[threading.Event], None], ...]:
        """Return what is to run, each in a thread, until an event."""
        return tuple(it.run for it in self._followed)

    def document(self) -> list[dict[str, str]]:
        """Return them as the page takes them, the newest first."""
        with self._changing:
            newest = sorted(self._events.values(), reverse=True)[:MOST]
        return [
            {"at": it.at, "type": it.kind, "reason": it.reason, "who": it.who, "text": it.text}
            for it in newest
        ]

    def _note(self, event: Object) -> None:
        key = informer.key_of(event)
        with self._changing:
            self._events[key] = read(event)
            if len(self._events) > 4 * MOST:
                newest = sorted(self._events, key=lambda it: self._events[it], reverse=True)
                self._events = {it: self._events[it] for it in newest[:MOST]}


def _nothing(_key: str) -> None:
    """Nobody is told: whoever looks sees them."""
