"""Waits for conditions with generous time limits, and runs components in background threads."""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROMPT = 120.0  # seconds; far longer than anything that tests wait for takes
WHOLE = 400.0  # the same for a whole program, on a busy machine


class Part(Protocol):
    """A component that runs until it is stopped."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


def wait_until(
    condition: Callable[[], object],
    seconds: float = PROMPT,
    found: Callable[[], object] = lambda: "the condition never held",
) -> None:
    """Return once *condition* holds; fail after *seconds*, with what is *found* instead."""
    deadline = time.monotonic() + seconds
    late = False
    while not condition():
        assert not late, found()
        time.sleep(0.01)
        late = time.monotonic() > deadline  # check once more: this process may have stalled


def until_removed(folder: Path) -> None:
    """Remove *folder*, also while processes that are ending, like arbiters, remove their files."""

    def removed() -> bool:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        return not folder.exists()

    wait_until(removed, found=lambda: f"{folder} has {sorted(folder.rglob('*'))}")


def started(ask: Callable[[Callable[[Exception | None], None]], object]) -> None:
    """Call *ask* with a callback; return when that is called, raising its exception, if any."""
    said: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    ask(said.put)
    failure = said.get(timeout=PROMPT)
    if failure is not None:
        raise failure


@contextlib.contextmanager
def beside(part: Part) -> Iterator[None]:
    """Run *part* in a thread until the block ends; then it must stop soon."""
    thread = threading.Thread(target=part.run)
    thread.start()
    try:
        yield
    finally:
        part.stop()
        thread.join(PROMPT)
        assert not thread.is_alive()
