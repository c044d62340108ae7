"""Daemon threads of a program, and whether one of them has died."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads:
    """Runs functions in threads of their own, and tells whether one has died."""

    def __init__(self) -> None:
        self._all: list[threading.Thread] = []

    def start(self, *parts: Callable[[], None]) -> list[threading.Thread]:
        """Start a thread for each of *parts*; return the threads."""
        begun = [threading.Thread(target=part, daemon=True) for part in parts]
        for thread in begun:
            thread.start()
        self._all += begun
        return begun

    def alive(self) -> str:
        """Return how many have died, an empty text if none has."""
        dead = sum(not thread.is_alive() for thread in self._all)
        return f"{dead} of {len(self._all)} threads have died" if dead else ""
