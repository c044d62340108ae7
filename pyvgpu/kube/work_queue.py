"""De-duplicating work queue with delayed re-adds (client-go's workqueue)."""

from __future__ import annotations

import heapq
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _ignore(seconds: float) -> None:
    """Discard the waiting time."""


class Queue:
    """Queue of names; one that is added twice is processed once.

    A name that is added while it is being processed is due again when that is done: so two
    threads never process the same name, and no change is lost. *waited* is called with the
    seconds from a name's due time to its ``take``.
    """

    def __init__(self, waited: Callable[[float], None] = _ignore) -> None:
        self._due: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []  # a heap; entries not in _due are stale
        self._taken: set[str] = set()
        self._waited = waited
        self._changed = threading.Condition()
        self._closed = False

    def add(self, name: str, seconds: float = 0.0) -> None:
        """Make *name* due in so many *seconds*, unless it is due sooner."""
        at = time.monotonic() + seconds
        with self._changed:
            if at >= self._due.get(name, float("inf")):
                return
            self._due[name] = at
            if name not in self._taken:
                heapq.heappush(self._order, (at, name))
                self._changed.notify()

    def take(self) -> str | None:
        """Wait for a due name and return it, None once the queue is closed. Pair with ``done``."""
        with self._changed:
            while not self._closed:
                left = self._seconds_to_the_first()
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                _, name = heapq.heappop(self._order)
                del self._due[name]
                self._taken.add(name)
                self._waited(-left)
                return name
        return None

    def done(self, name: str) -> None:
        """Finish a name that was taken."""
        with self._changed:
            self._taken.discard(name)
            if name in self._due:
                heapq.heappush(self._order, (self._due[name], name))
                self._changed.notify()

    def close(self) -> None:
        """Make every ``take`` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def overdue(self) -> int:
        """Return how many names are due now and not taken."""
        with self._changed:
            now = time.monotonic()
            return sum(at <= now for name, at in self._due.items() if name not in self._taken)

    def __len__(self) -> int:
        """Return how many names are due, now or later."""
        return len(self._due)

    def _seconds_to_the_first(self) -> float | None:
        while self._order:
            at, name = self._order[0]
            if self._due.get(name) == at and name not in self._taken:
                return at - time.monotonic()
            heapq.heappop(self._order)
        return None
