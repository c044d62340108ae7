"""Little memory and short waits for a process with many threads that each do little."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's mallopt
_TURN_SECONDS = 0.0005


def begin() -> None:
    """Be frugal; called when all is imported, and before threads are begun.

    All threads take memory from one heap: glibc gives each thread an arena, where libc has more,
    and none ever gives one back. With fifty of them that is a sixth of what the whole agent needs.

    Whoever answers kubelet comes to his turn soon, and not after the 5 ms for which Python lets a
    thread go on that looks at what 128 containers use. What is imported stays, so it is not
    looked through again for what nobody needs.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    sys.setswitchinterval(_TURN_SECONDS)
    gc.collect()
    gc.freeze()
