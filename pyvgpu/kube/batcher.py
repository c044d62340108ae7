"""Coalesce concurrent calls into batches that one worker thread runs.

Twenty threads that contend for locks cost a Python process more than the work that they do. Where
the work is worth a delay, a batch begins only when no further call arrives for a moment: then
twenty calls in quick succession make one batch, and not four.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Asked = TypeVar("Asked")

MOST_PAUSES = 4  # before a batch begins, even if calls keep arriving


class Gathered(Generic[Asked]):
    """Calls *do* with batches: each has the items that were added since the last batch began.

    *spawn* runs a function on a thread: at most one worker runs, until no items are left. Before
    a batch begins, the worker calls *pause*, if given, until no item has arrived meanwhile, but
    MOST_PAUSES times at most.
    """

    def __init__(
        self,
        do: Callable[[Sequence[Asked]], object],
        spawn: Callable[[Callable[[], None]], object],
        pause: Callable[[], object] | None = None,
    ) -> None:
        self._do = do
        self._spawn = spawn
        self._pause = pause
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._busy = False

    def add(self, *asked: Asked) -> None:
        """Add *asked* to the next batch, which has not begun yet."""
        with self._lock:
            self._waiting += asked
            if self._busy or not self._waiting:
                return
            self._busy = True
        self._spawn(self._work)

    def _work(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # a failed pause only makes the batch smaller
                self._pause_while_growing()
            with self._lock:
                batch, self._waiting = self._waiting, []
                if not batch:
                    self._busy = False
                    return
            try:
                self._do(batch)
            except BaseException:
                with self._lock:
                    self._busy = False
                self.add()  # start a worker for the items that arrived meanwhile
                raise

    def _pause_while_growing(self) -> None:
        before = 0
        for _ in range(MOST_PAUSES):
            if self._pause is None or len(self._waiting) == before:
                return
            before = len(self._waiting)
            self._pause()
