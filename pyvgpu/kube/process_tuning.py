"""Tune glibc and Python for programs with many threads and API objects: memory and latency.

Decoded API objects contain no reference cycles, and there are so many that a pass of the cyclic
garbage collector over them takes as long as decoding them: tens of milliseconds with a hundred
thousand pods.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_SECONDS = 0.0005  # of a thread while others are runnable; Python's default is 0.005

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's mallopt

_lock = threading.Lock()
_lists = 0  # being decoded


def limit_memory() -> None:
    """Use one malloc arena for all threads; called before any thread starts.

    glibc gives each thread its own, and never returns it: with fifty mostly idle threads that is a
    sixth of the agent's memory.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def settle() -> None:
    """Exclude the current objects from garbage collection, and switch threads more often.

    Called after all imports, and once everything is listed. Objects that were excluded before, as
    those of an earlier term, are collected once. With a short switch interval, threads that read
    usage or process watch events do not delay an answer by 5 ms, the default.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(TURN_SECONDS)


def collect_rarely() -> None:
    """Let the cyclic garbage collector run only after many new objects."""
    gc.set_threshold(50_000, 20, 100)


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Keep the cyclic garbage collector disabled while a LIST response is decoded.

    Several lists may be decoded concurrently: the last one enables it again.
    """
    global _lists
    with _lock:
        _lists += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _lists -= 1
            if not _lists:
                gc.enable()
