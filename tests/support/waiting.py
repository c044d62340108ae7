"""Wait for what comes soon, nobody knows when, and for what runs beside it to end."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = 120.0  # seconds, far beyond what anything takes that is waited for
WHOLE = 400.0  # the same for a whole program, with much else on the machine


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
    late = False
    while not condition():
        assert not late, found()
        time.sleep(0.01)
        late = time.monotonic() > deadline  # looked at once more: it may be us who stood still


def started(ask: Callable[[Callable[[Exception | None], None]], object]) -> None:
    """Be back when what *ask* is given was called; raise what it was called with, if anything."""
    said: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    ask(said.put)
    failure = said.get(timeout=PROMPT)
    if failure is not None:
        raise failure


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
