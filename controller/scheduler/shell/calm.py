"""Lets a process that knows a hundred thousand pods answer evenly.

What was read at the start stays, and is made of small objects in no circles: the collector of
circles would look at all of them again and again, tens of milliseconds each time. And of threads
that compute, another has its turn soon, so that news do not keep an answer waiting.
"""

from __future__ import annotations

import gc
import sys

TURN_SECONDS = 0.0005  # of a thread while others want to compute, too; Python's own is 0.005


def settle() -> None:
    """Take what there is now for what stays; to be called when everything was read.

    What stayed before, as what a former leader knew, is looked at once more.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(TURN_SECONDS)
