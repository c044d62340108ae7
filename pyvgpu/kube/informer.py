"""The objects of one kind as they are now: a list, and then what the API server says of them.

What is kept of an object is what *read* makes of it, so that ten thousand pods are small. After
any break the watch goes on where it was; where the server has forgotten that, the list is read
again, and what is gone from it was deleted. So it is where the server has not come as far as it
was, since then it was restored from a copy of before: it would say nothing until it has, and
never what is otherwise until there. And so it is where nothing was heard for long. Nothing is
asked faster than ``backoff`` allows.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from pyvgpu.kube import apiserver, backoff, cycles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.kube.apiserver import Object

log = logging.getLogger(__name__)

Kept = TypeVar("Kept")

DEAF_SECONDS = 140.0  # without a word, of which the server says one a minute
_WATCH_SECONDS = (240, 480)  # spread, so that not all watches end at once
_GONE = 410  # the server no longer knows what came after that version


class Counting:
    """Who is told how lists and watches go; this one does not care."""

    def listed(self, path: str, seconds: float) -> None:
        """Hear that a list was read in full."""

    def lost(self, path: str, status: int) -> None:
        """Hear that a list or a watch did not go on."""


class Informer(Generic[Kept]):
    """Knows the objects at a path; *changed* is told the key of each that comes, changes, goes."""

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
        self._again = False  # the list is to be read anew
        self._listed = False  # it was read just now
        self._heard = 0.0  # when the server has said something
        self.synced = threading.Event()
        self.current = threading.Event()  # what is known was so, and nothing is missed since

    def get(self, key: str) -> Kept | None:
        """Return what is kept of an object, None if there is none."""
        return self._known.get(key)

    def values(self) -> list[Kept]:
        """Return what is kept of all objects."""
        return list(self._known.values())

    def __len__(self) -> int:
        """Return how many objects are known."""
        return len(self._known)

    def read_anew(self) -> None:
        """Let the list be read once more, soon: upon the next word of the server's, or its end."""
        self._again = True

    def sync(self) -> None:
        """Read the list now, before :meth:`run`; ServerError if that cannot be."""
        self._list()

    def run(self, stop: threading.Event) -> None:
        """Follow the objects until *stop*."""
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
                if stop.is_set():  # the watch was ended for that
                    break
                log.warning("lost %s: %s", self._path, exc)
                status, after = exc.status, exc.retry_after
                self._counting.lost(self._path, status)
                if status == _GONE:
                    self._version = ""
            except OSError as exc:  # such as no file descriptor left, while an object was taken in
                log.warning("lost %s: %s", self._path, exc)
                status, self._version = 0, ""
                self._counting.lost(self._path, status)
            self.current.clear()
            # A watch that lasted was no failure, however it ended.
            attempt = 0 if time.monotonic() - begun > backoff.LONGEST_SECONDS else attempt + 1
            if status is not None or attempt > 1:
                stop.wait(backoff.delay(attempt, random.random(), status, after))  # noqa: S311
        self.current.clear()

    def _must_list(self) -> bool:
        return not self._version or self._again or self._is_deaf() or self._is_ahead()

    def _is_deaf(self) -> bool:
        return time.monotonic() >= self._heard + DEAF_SECONDS

    def _is_ahead(self) -> bool:
        """Tell whether the server has not come as far as what is known.

        Versions may be compared as numbers: KEP-5504; what is none tells nothing.
        """
        now = self._api.newest(self._path, self._query)
        both = now, self._version
        return all(it.isdecimal() for it in both) and int(now) < int(self._version)

    def _list(self) -> None:
        begun = time.monotonic()
        self._again = False
        now: dict[str, Kept] = {}
        version = ""
        with cycles.left_alone():
            for page, whole in self._api.pages(self._path, self._query):
                now |= {key_of(it): self._read(it) for it in page}  # large, what is kept is not
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
    """Return by what an object is known: its name, after its namespace if it has one."""
    metadata = thing.get("metadata") or {}
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata.get('name')}" if namespace else str(metadata.get("name"))
