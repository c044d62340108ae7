"""Lets one thread do for all who have come what each would do alone.

Twenty threads that take turns at locks cost a process of Python more than all that they do.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Asked = TypeVar("Asked")


class Gathered(Generic[Asked]):
    """Has *do* see to all who come: each time those who have come since it was begun last.

    *spawn* lets a thread do something: there is one at most, for as long as anybody comes.
    """

    def __init__(
        self,
        do: Callable[[Sequence[Asked]], object],
        spawn: Callable[[Callable[[], None]], object],
    ) -> None:
        self._do = do
        self._spawn = spawn
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
