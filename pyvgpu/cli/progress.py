"""Progress of a long copy: a bar on a terminal, one line elsewhere."""

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

DELAY_SECONDS = 0.5  # a shorter copy is not reported


class ProgressCallback(Protocol):
    """Progress callback: a file's name, bytes copied so far, bytes in all."""

    def __call__(self, name: str, done: int, total: int, /) -> None:
        """Report progress."""


@contextlib.contextmanager
def copying(what: str) -> Iterator[ProgressCallback]:
    """Yield a progress callback; it shows nothing unless the copy takes long."""
    started = time.monotonic()
    bar: Progress | None = None
    shown = False

    def report(name: str, done: int, total: int) -> None:
        nonlocal bar, shown
        if time.monotonic() - started < DELAY_SECONDS:
            return
        if not shown:
            shown = True
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
