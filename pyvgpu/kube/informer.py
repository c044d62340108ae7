"""Informer: a cache of the objects at a path, kept current by LIST and WATCH.

The cache stores only *read*'s projection of each object, so that ten thousand pods are small.
After an interruption the watch resumes at its last resourceVersion. The list is fetched again, and
objects missing from it count as deleted, if the server no longer knows that version; if the
server's version is lower than ours, because it was restored from a backup and would send no events
until it has caught up; and if nothing was received for long. All requests are rate limited by
``backoff``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from pyvgpu.kube import apiserver, backoff, process_tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.kube.apiserver import Object

log = logging.getLogger(__name__)

Kept = TypeVar("Kept")

DEAF_SECONDS = 140.0  # without an event; the server sends a bookmark a minute
LASTING_SECONDS = 10.0  # of a watch that is no failure, at least
_WATCH_SECONDS = (240, 480)  # random, so that not all watches end at once
_GONE = 410  # the server has discarded the events after that version


class Counting:
    """Metrics hooks for lists and watches; this implementation does nothing."""

    def listed(self, path: str, seconds: float) -> None:
        """Count a complete list."""

    def lost(self, path: str, status: int) -> None:
        """Count a failed list or watch."""


class Informer(Generic[Kept]):
    """Caches the objects at a path; calls *changed* with the key of each added or changed one."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        path: str,
        query: Mapping[str, str | int],
        read: Callable[[Object], Kept],
        changed: Callable[[str], None],
        counting: Counting | None = None,
    ) -> None:
        self._counting = counting or Counting()
        self._api = api
        self._path = path
        self._query = query
        self._read = read
        self._changed = changed
        self._known: dict[str, Kept] = {}
        self._version = ""
        self._again = False  # a relist is requested
        self._listed = False  # sync() has just listed
        self._heard = 0.0  # time of the last event
        self.synced = threading.Event()
        self.current = threading.Event()  # the cache is complete, and the watch is running

    def get(self, key: str) -> Kept | None:
        """Return the projection of an object, None if there is none."""
        return self._known.get(key)

    def keys(self) -> list[str]:
        """Return the keys of all objects."""
        return list(self._known)

    def values(self) -> list[Kept]:
        """Return the projections of all objects."""
        return list(self._known.values())

    def __len__(self) -> int:
        """Return the number of cached objects."""
        return len(self._known)

    def relist(self) -> None:
        """Let the list be read once more, soon: upon the next word of the server's, or its end."""
        self._again = True

    def sync(self) -> None:
        """Fetch the list now, before :meth:`run`; ServerError if that fails."""
        self._list()

    def run(self, stop: threading.Event) -> None:
        """Keep the cache current until *stop*."""
        attempt = 0
        while not stop.is_set():
            begun = time.monotonic()
            status: int | None = None
            after: float | None = None
            try:
                if not self._listed and self._must_list():
                    self._list()
                self._listed = False
                self.current.set()
                self._follow(stop)
            except apiserver.ServerError as exc:
                if stop.is_set():  # which has ended the watch
                    break
                log.warning("lost %s: %s", self._path, exc)
                status, after = exc.status, exc.retry_after
                self._counting.lost(self._path, status)
                if status == _GONE:
                    self._version = ""
            except OSError as exc:  # such as out of file descriptors, while processing an object
                log.warning("lost %s: %s", self._path, exc)
                status, self._version = 0, ""
                self._counting.lost(self._path, status)
            self.current.clear()
            # A watch that lasted longer than the delay before it was not a failure, however it
            # ended: API servers that restart some times in a row cause no longer delay each time.
            lasted = time.monotonic() - begun
            has_lasted = lasted > max(backoff.longest(attempt), LASTING_SECONDS)
            attempt = 0 if has_lasted else attempt + 1
            if status is not None or attempt > 1:
                stop.wait(backoff.delay(attempt, random.random(), status, after))  # noqa: S311
        self.current.clear()

    def _must_list(self) -> bool:
        return not self._version or self._again or self._is_deaf() or self._is_ahead()

    def _is_deaf(self) -> bool:
        return time.monotonic() >= self._heard + DEAF_SECONDS

    def _is_ahead(self) -> bool:
        """Return whether the server's resourceVersion is lower than ours.

        Versions may be compared as numbers (KEP-5504); other texts are not compared.
        """
        now = self._api.newest(self._path, self._query)
        both = now, self._version
        return all(version.isdecimal() for version in both) and int(now) < int(self._version)

    def _list(self) -> None:
        begun = time.monotonic()
        self._again = False
        now: dict[str, Kept] = {}
        version = ""
        with process_tuning.gc_disabled():
            for page, whole in self._api.pages(self._path, self._query):
                now |= {key_of(item): self._read(item) for item in page}  # keep projections only
                version = whole
        gone = self._known.keys() - now.keys()
        self._known = now
        self._version = version
        self._listed = True
        self._heard = time.monotonic()
        self._counting.listed(self._path, time.monotonic() - begun)
        for key in (*now, *gone):
            self._changed(key)
        self.synced.set()

    def _follow(self, stop: threading.Event) -> None:
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311
        for event, thing in self._api.watch(self._path, self._query, self._version, seconds):
            if event == "ERROR":
                raise apiserver.ServerError(
                    str(thing.get("message")), int(thing.get("code") or 500)
                )
            self._heard = time.monotonic()
            if self._again:
                return
            self._version = thing["metadata"]["resourceVersion"]
            if event == "BOOKMARK":
                continue
            key = key_of(thing)
            if event == "DELETED":
                self._known.pop(key, None)
            else:
                self._known[key] = self._read(thing)
            self._changed(key)
            if stop.is_set():
                return


def key_of(thing: Object) -> str:
    """Return an object's key: its name, after its namespace if it has one."""
    metadata = thing.get("metadata") or {}
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata.get('name')}" if namespace else str(metadata.get("name"))
