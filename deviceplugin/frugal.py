"""Little memory for a process with many threads that each do little."""

from __future__ import annotations

import contextlib
import ctypes

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's mallopt


def begin() -> None:
    """Let all threads that are begun from now on take memory from one heap, where libc has more.

    glibc gives each thread an arena, and none ever gives one back: with fifty of them a sixth of
    what the whole agent needs.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
