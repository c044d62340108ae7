"""Kill a process through a pidfd, so that a reused pid is never hit."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def kill(pid: int, still: Callable[[], bool]) -> bool:
    """Kill process *pid* of our pid namespace if *still* returns true; whether it was killed.

    A pid can be reused at any time, but a pidfd always refers to the same process. So *still* is
    called once the pidfd is open: its checks by pid then see this process, or none.
    PermissionError without the right to kill it.
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
