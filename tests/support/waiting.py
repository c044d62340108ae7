"""Wait for what comes soon, nobody knows when, and for what runs beside it to end."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = 30.0  # seconds, far beyond what anything takes that is waited for


class Part(Protocol):
    """What runs until it is stopped."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


def wait_until(
    condition: Callable[[], object],
    seconds: float = PROMPT,
    found: Callable[[], object] = lambda: "it never came to be",
) -> None:
    """Return once *condition* holds; fail after *seconds*, with what is *found* instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, found()
        time.sleep(0.01)


@contextlib.contextmanager
def beside(part: Part) -> Iterator[None]:
    """Let *part* run in a thread of its own, until the block ends; then it must end soon."""
    thread = threading.Thread(target=part.run)
    thread.start()
    try:
        yield
    finally:
        part.stop()
        thread.join(PROMPT)
        assert not thread.is_alive()
