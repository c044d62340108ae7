"""Runs work in processes that kill themselves at a chosen step."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def die_at(number: int, work: Callable[[], object]) -> bool:
    """Fork a worker that kills itself before its *number*-th system step; return whether it did.

    Steps are Python's audit events: each opened file, folder, link, rename, removal and lock.
    """
    child = os.fork()
    if child == 0:
        left = [number]

        def count(event: str, _: object) -> None:
            if event.split(".")[0] in ("open", "os", "fcntl", "shutil"):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
