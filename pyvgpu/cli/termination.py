"""Termination signals in a process with threads.

A Python signal handler runs in the main thread, between two instructions. So it must not take a
lock that the main thread may hold, as threading.Event.set does; and a main thread that waits
without a timeout never runs it if the kernel delivered the signal to another thread. But Python's
C handler immediately writes the signal number to a descriptor, in any thread: a thread reads that.
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
    """Call *stop* in a separate thread for each SIGTERM or SIGINT.

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
