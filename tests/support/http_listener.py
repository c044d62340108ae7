"""Serves a server of Python's http.server in a thread, and ends it without delay."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socketserver
    from collections.abc import Iterator

POLL_SECONDS = 0.01  # ``shutdown`` waits for one poll, by default half a second


@contextlib.contextmanager
def serving(listener: socketserver.BaseServer) -> Iterator[None]:
    """Serve until the block ends, then close *listener*."""
    thread = threading.Thread(
        target=listener.serve_forever, kwargs={"poll_interval": POLL_SECONDS}, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
