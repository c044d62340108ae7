"""What is to be looked at, each once at a time, some of it later."""

from __future__ import annotations

import threading
import time


class Queue:
    """Names that are due; one that is added twice is looked at once.

    A name that is added while it is being looked at is due again when that is done: so two threads
    never look at the same, and no news is lost.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._taken: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False

    def add(self, name: str, seconds: float = 0.0) -> None:
        """Let *name* be due in so many *seconds*, or sooner if it was to be."""
        at = time.monotonic() + seconds
        with self._changed:
            self._due[name] = min(self._due.get(name, at), at)
            self._changed.notify()

    def take(self) -> str | None:
        """Wait for a name and take it, None when the queue was closed. ``done`` gives it back."""
        with self._changed:
            while not self._closed:
                free = {name: at for name, at in self._due.items() if name not in self._taken}
                name = min(free, key=free.__getitem__, default=None)
                if name is not None and free[name] <= time.monotonic():
                    del self._due[name]
                    self._taken.add(name)
                    return name
                left = None if name is None else free[name] - time.monotonic()
                self._changed.wait(left)
        return None

    def done(self, name: str) -> None:
        """Give back a name that was taken."""
        with self._changed:
            self._taken.discard(name)
            self._changed.notify()

    def close(self) -> None:
        """Let every ``take`` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        """Return how many names are due, now or later."""
        return len(self._due)
