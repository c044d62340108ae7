"""Disable Python's cyclic garbage collector while LIST responses are decoded.

Decoded API objects contain no reference cycles, and there are so many that a collection takes as
long as decoding them. Several lists may be decoded concurrently: the last one enables it again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_lists = 0  # being decoded


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Keep the cyclic garbage collector disabled in this context."""
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
