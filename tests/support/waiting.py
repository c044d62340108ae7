"""Wait for what comes soon, nobody knows when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = 30.0  # seconds, far beyond what anything takes that is waited for


def wait_until(condition: Callable[[], object]) -> None:
    """Return once *condition* holds; fail if it never does."""
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
