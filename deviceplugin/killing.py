"""Kills a process, and no other that has its number by then."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def kill(pid: int, still: Callable[[], bool]) -> bool:
    """Kill process *pid* of our pid namespace if *still* says so; whether it was killed.

    A pid may be given to another process at any time, a descriptor of a process never is: so
    *still* is asked when that is open, and what it looks at by pid is then of this process, or of
    none. PermissionError if it is not ours to kill.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not still():
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True
