"""Nobody looks for cycles while a list is read.

What is read from the API server has none, and is so many objects that to look at them takes as
long as to read them. Several lists may be read at once: the last lets others look again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_guard = threading.Lock()
_lists = 0  # that are being read


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Let nobody look meanwhile."""
    global _lists
    with _guard:
        _lists += 1
        gc.disable()
    try:
        yield
    finally:
        with _guard:
            _lists -= 1
            if not _lists:
                gc.enable()
