"""Show how far a long copy is: by a bar, or in one line where nobody looks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Protocol

from pyvgpu import log, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

PATIENCE_SECONDS = 0.5  # what is done by then is not worth a word


class Report(Protocol):
    """What the one who copies calls: a file's name, bytes copied so far, bytes in all."""

    def __call__(self, name: str, done: int, total: int, /) -> None:
        """Tell of progress."""


@contextlib.contextmanager
def copying(what: str) -> Iterator[Report]:
    """Yield a function to report a copy to; it says nothing unless the copy takes long."""
    started = time.monotonic()
    bar: Progress | None = None
    told = False

    def report(name: str, done: int, total: int) -> None:
        nonlocal bar, told
        if time.monotonic() - started < PATIENCE_SECONDS:
            return
        if not told:
            told = True
            if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown", ""):
                bar = _bar()
                bar.add_task(what, total=total)
            else:
                log.say(f"{what}, {quantity.format_size(total)}, once")
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, description=f"{what}: {name}")

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _bar() -> Progress:
    from rich import console, progress

    bar = progress.Progress(
        progress.TextColumn("pyvgpu: {task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar
