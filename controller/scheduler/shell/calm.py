"""Tune Python's garbage collector and thread switching for even answer times.

What was listed at the start stays in memory, as small objects without reference cycles: with a
hundred thousand pods, each pass of the cyclic collector over them would take tens of
milliseconds. A short switch interval keeps threads that process watch events from delaying an
answer.
"""

from __future__ import annotations

import gc
import sys

TURN_SECONDS = 0.0005  # of a thread while others are runnable; Python's default is 0.005


def settle() -> None:
    """Exclude the current objects from collection; call it once everything is listed.

    Objects that were excluded before, such as those of an earlier term, are collected once.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(TURN_SECONDS)
