"""Lets one thread do for all who have come what each would do alone.

Twenty threads that take turns at locks cost a process of Python more than all that they do. Where
what is done is worth a wait, it begins when nobody else comes for a moment: then twenty who come
one after the other are seen to once, and not four times.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Asked = TypeVar("Asked")

MOST_PAUSES = 4  # however many come


class Gathered(Generic[Asked]):
    """Has *do* see to all who come: each time those who have come since it was begun last.

    *spawn* lets a thread do something: there is one at most, for as long as anybody comes. Before
    it begins, *pause* is called until nobody has come meanwhile, if it is given: who always finds
    somebody does not go on for ever.
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
        self._changing = threading.Lock()
        self._waiting: list[Asked] = []
        self._busy = False

    def add(self, *asked: Asked) -> None:
        """Let *asked* be seen to soon, by a call of *do* that has not begun yet."""
        with self._changing:
            self._waiting += asked
            if self._busy or not self._waiting:
                return
            self._busy = True
        self._spawn(self._work)

    def _work(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # who is not waited for is of the next
                self._until_nobody_comes()
            with self._changing:
                batch, self._waiting = self._waiting, []
                if not batch:
                    self._busy = False
                    return
            try:
                self._do(batch)
            except BaseException:
                with self._changing:
                    self._busy = False
                self.add()  # who has come meanwhile is not left
                raise

    def _until_nobody_comes(self) -> None:
        before = 0
        for _ in range(MOST_PAUSES):
            if self._pause is None or len(self._waiting) == before:
                return
            before = len(self._waiting)
            self._pause()
