"""An end that signals ask for, in a process with threads.

A handler of Python's runs in the main thread, between two instructions. So it must not want a lock
that the main thread may have, as threading.Event.set does; and a main thread that waits without a
limit never runs it where the kernel has given the signal to another thread. What C does at once,
in whichever thread, is to write the signal's number to a descriptor, which a thread reads here.
"""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_signals(stop: Callable[[], object]) -> None:
    """Call *stop* from a thread of its own each time that this process is told to end.

    To be called by the main thread.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while numbers := reading.recv(64):
            if not set(SIGNALS).isdisjoint(numbers):
                stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
