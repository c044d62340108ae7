"""Event recorder of all programs: writes Kubernetes Events on one thread.

Like client-go's recorder, it returns at once. Events with the same key replace each other until
one is written: at most one in Limits.least_seconds, and the same text again only after
Limits.repeat_seconds. An Event's name is a hash of its content, so a retry creates no second one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver, backoff, objects, rate_limit, work_loop, work_queue

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

PER_SECOND = 20.0
MOST = 20_000  # events queued, and keys remembered
MOST_BYTES = 1024  # of a message: the API server's limit

_OF_NODES = "default"  # the namespace of events about objects that have none


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An event about a pod, or about a node."""

    uid: str
    namespace: str  # empty: of a node, or not known yet
    name: str
    reason: str
    text: str
    warning: bool = True
    kind: str = "Pod"
    id: str = ""  # the name of the Event: created once; empty: any number, by reason and text
    of: Any = None  # for the caller's own use

    @property
    def key(self) -> str:
        """A newer event with the same key replaces it."""
        return self.id or f"{self.uid} {self.reason}"


@dataclasses.dataclass(frozen=True, slots=True)
class EventLimits:
    """How often events with one key are written."""

    least_seconds: float = 0.0  # between two of them
    repeat_seconds: float = float("inf")  # before the same text is written again


@dataclasses.dataclass(frozen=True, slots=True)
class EventSource:
    """The component that reports, as `kubectl describe` shows it."""

    component: str
    node: str = ""
    reporting: str = ""  # a qualified name; empty: the component


@dataclasses.dataclass(frozen=True, slots=True)
class _LastEvent:
    """The last event with a key; times are seconds of a monotonic clock."""

    text: str
    at: float  # when it was written
    due: float  # when the last one was due, whether it had news or not


_NOTHING = _LastEvent("", float("-inf"), float("-inf"))


def _unchanged(event: Event) -> Event:
    return event


def _ignore(event: Event) -> None:
    """Discard a written event."""


def _always() -> bool:
    return True


class Recorder:
    """Writes events, one after the other, on the thread of :meth:`run`; failures are retried.

    Just before an event is written, *complete* completes it, or returns None to drop it. *written*
    is called with each that is created. Nothing is written while *may_act* returns false.
    """

    def __init__(
        self,
        api: apiserver.ApiServer,
        source: EventSource,
        limits: EventLimits = EventLimits(),  # noqa: B008 - it is frozen
        *,
        complete: Callable[[Event], Event | None] = _unchanged,
        written: Callable[[Event], object] = _ignore,
        may_act: Callable[[], bool] = _always,
        pace: rate_limit.Pace | None = None,
        gate: rate_limit.Gate | None = None,
    ) -> None:
        self._api = api
        self._source = source
        self._limits = limits
        self._complete = complete
        self._done = written
        self._may_act = may_act
        self._pace = pace or rate_limit.Pace(PER_SECOND)
        self._gate = gate or rate_limit.Gate()
        self._lock = threading.Lock()
        self._waiting: dict[str, Event] = {}
        self._said: dict[str, _LastEvent] = {}  # by key
        self._token = os.urandom(4).hex()
        self._acting: str | None = None  # the key of the event that is being written
        self._queue = work_queue.Queue()
        self._loop = work_loop.WorkLoop("event", self._queue, self._gate, may_act)

    def record(self, event: Event) -> None:
        """Queue *event*, unless the same was just written; drop it if the queue is full."""
        with self._lock:
            now = time.monotonic()
            said = self._said.get(event.key, _NOTHING)
            if event.text and self._repeats(said, event.text, now):
                self._waiting.pop(event.key, None)  # drop a different text from in between
                return
            if event.key not in self._waiting and len(self._waiting) >= MOST:
                log.debug("queue full: dropped event %s of %s", event.reason, event.name)
                return
            self._waiting[event.key] = event
        self._queue.add(event.key, max(said.due + self._limits.least_seconds - now, 0.0))

    def withdraw(self, uid: str, reason: str) -> None:
        """Drop an event that was not written yet, or is being written for the first time."""
        key = Event(uid, "", "", reason, "").key
        with self._lock:
            self._waiting.pop(key, None)
            if self._acting == key:
                self._acting = None

    def __len__(self) -> int:
        """Return how many events are queued."""
        return len(self._waiting)

    def run(self, stop: threading.Event) -> None:
        """Write events until *stop*, or until :meth:`close`."""
        for key in self._loop.keys(stop):
            self._make(key)

    def close(self) -> None:
        """Let :meth:`run` end."""
        self._queue.close()

    def _make(self, key: str) -> None:
        with self._lock:
            event = self._waiting.pop(key, None)
            self._acting = key
            if event is None:
                return
            said = self._said.get(key, _NOTHING)
            self._remember(key, dataclasses.replace(said, due=time.monotonic()))
        try:
            self._write(key, event)
        except apiserver.ServerError as exc:
            if backoff.is_final(exc.status):
                log.warning("gave up %s of %s: %s", event.reason, _label(event), exc)
                self._loop.succeeded(key)
                return
            with self._lock:
                if self._acting != key:
                    return  # withdrawn meanwhile
                self._waiting.setdefault(key, event)
            self._loop.failed(key, exc)

    def _write(self, key: str, event: Event) -> None:
        found = self._complete(event)
        said = self._said.get(key, _NOTHING)
        if found is None or self._repeats(said, found.text, time.monotonic()):
            self._loop.succeeded(key)
            return
        self._pace.wait()
        if not self._may_act():
            with self._lock:
                self._waiting.setdefault(key, event)
            self._queue.add(key)
            return
        path = f"/api/v1/namespaces/{found.namespace or _OF_NODES}/events"
        try:
            self._api.call("POST", path, body=self._document(found, said), retry_seconds=0.0)
        except apiserver.ServerError as exc:
            # The namespace is gone, or the event exists already.
            if exc.status not in (apiserver.NOT_FOUND, apiserver.CONFLICT):
                raise
        self._gate.passed()
        self._loop.succeeded(key)
        with self._lock:
            due = self._said.get(key, _NOTHING).due
            self._remember(key, _LastEvent(found.text, time.monotonic(), due))
        self._done(found)

    def _repeats(self, said: _LastEvent, text: str, now: float) -> bool:
        return text == said.text and now - said.at < self._limits.repeat_seconds

    def _remember(self, key: str, said: _LastEvent) -> None:
        self._said.pop(key, None)  # re-inserted last: the oldest are dropped first
        self._said[key] = said
        while len(self._said) > MOST:
            del self._said[next(iter(self._said))]

    def _document(self, event: Event, said: _LastEvent) -> objects.Object:
        now, source = objects.now(), self._source
        about = {"kind": event.kind, "name": event.name, "uid": event.uid}
        if event.namespace:
            about["namespace"] = event.namespace
        component = {"component": source.component}
        if source.node:
            component["host"] = source.node
        # A text that may be repeated is another Event each time, but not if its write is retried.
        again = "" if self._limits.repeat_seconds == float("inf") else f"{self._token} {said.at}"
        words = f"{event.uid} {event.reason} {event.text} {again}".encode()
        digest = hashlib.blake2b(words, digest_size=8).hexdigest()
        return {
            "metadata": {
                "name": event.id or f"{event.name[:200]}.{digest}",
                "namespace": event.namespace or _OF_NODES,
            },
            "involvedObject": {"apiVersion": "v1", **about},
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": _short(event.text),
            "source": component,
            "reportingComponent": source.reporting or source.component,
            "reportingInstance": source.node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _label(event: Event) -> str:
    return f"{event.kind.lower()} {event.name or event.uid}"


def _short(text: str) -> str:
    content = text.encode()
    if len(content) <= MOST_BYTES:
        return text
    return content[: MOST_BYTES - 3].decode(errors="ignore") + "..."
