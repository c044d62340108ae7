"""What is to be looked at, each once at a time, some of it later."""

from __future__ import annotations

import heapq
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _ignore(seconds: float) -> None:
    """Nobody wants to know how long things wait."""


class Queue:
    """Names that are due; one that is added twice is looked at once.

    A name that is added while it is being looked at is due again when that is done: so two threads
    never look at the same, and no news is lost. *waited* is told how long after it was due a name
    was taken.
    """

    def __init__(self, waited: Callable[[float], None] = _ignore) -> None:
        self._due: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []  # a heap; what is not in _due so is passed over
        self._taken: set[str] = set()
        self._waited = waited
        self._changed = threading.Condition()
        self._closed = False

    def add(self, name: str, seconds: float = 0.0) -> None:
        """Let *name* be due in so many *seconds*, or sooner if it was to be."""
        at = time.monotonic() + seconds
        with self._changed:
            if at >= self._due.get(name, float("inf")):
                return
            self._due[name] = at
            if name not in self._taken:
                heapq.heappush(self._order, (at, name))
                self._changed.notify()

    def take(self) -> str | None:
        """Wait for a name and take it, None when the queue was closed. ``done`` gives it back."""
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
        """Give back a name that was taken."""
        with self._changed:
            self._taken.discard(name)
            if name in self._due:
                heapq.heappush(self._order, (self._due[name], name))
                self._changed.notify()

    def close(self) -> None:
        """Let every ``take`` return None."""
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
