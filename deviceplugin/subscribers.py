"""Subscriptions to an event: each is added by a call, and none is ever replaced."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

Values = ParamSpec("Values")


class Subscribers(Generic[Values]):
    """The functions that are called for one kind of event; thread-safe.

    A call of this object calls all of them, in the order in which they were added.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: tuple[Callable[Values, object], ...] = ()

    def add(self, function: Callable[Values, object]) -> None:
        """Call *function* at each event from now on."""
        with self._lock:
            self._functions += (function,)

    def __call__(self, *values: Values.args, **named: Values.kwargs) -> None:
        """Call every subscriber; raise the first failure after all were called."""
        failure: Exception | None = None
        for function in self._functions:
            try:
                function(*values, **named)
            except Exception as exc:
                failure = failure or exc
        if failure is not None:
            raise failure
