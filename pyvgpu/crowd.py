"""A server of connections, so many at once: who keeps it waiting longest makes room for the next.

Else a few who connect and say nothing, or do not read what they asked for, would turn all others
away. Who is being answered keeps nobody waiting, and keeps its place; where all are, others are
turned away.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import accepting

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 5  # that whoever was told to make room may take
_LONGEST_WAIT = 3600.0  # for somebody to connect: :meth:`Server.shutdown` ends it


class Server(http.server.ThreadingHTTPServer):
    """Answers at most *most* connections at once, each in a thread of its own.

    A handler says by ``answering`` while it is we who keep the other side waiting.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[http.server.BaseHTTPRequestHandler],
        most: int,
    ) -> None:
        """Listen at *address*; OSError where that cannot be."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(most)
        self._changing = threading.Lock()
        self._awaited: dict[socket.socket, None] = {}  # the longest first
        super().__init__(address, handler)
        host, port = self.server_address[:2]
        self._failures = accepting.Failures(f"{host!s}:{port}")

    def serve_forever(self, poll_interval: float = _LONGEST_WAIT) -> None:
        """Serve until ``shutdown``; who serves nobody is not woken to look for that."""
        super().serve_forever(poll_interval)

    def shutdown(self) -> None:
        """End ``serve_forever``, and be back when that has ended."""
        self._failures.stop()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for somebody to connect
        super().shutdown()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; pause where that fails, since the socket stays readable."""
        try:
            accepted = super().get_request()
        except OSError as exc:
            self._failures.pause(exc)
            raise
        self._failures.passed()
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a place and a thread, or turn it away."""
        if not self._has_place():
            self.shutdown_request(request)
            return
        with self._changing:
            self._awaited[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for it
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until its end, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    @contextlib.contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Note that inside it is we who keep the other side of *connection* waiting."""
        with self._changing:
            self._awaited.pop(connection, None)
        try:
            yield
        finally:
            with self._changing:
                self._awaited[connection] = None

    def _has_place(self) -> bool:
        if self._free.acquire(blocking=False):
            return True
        with self._changing:
            longest = next(iter(self._awaited), None)
            if longest is None:
                return False  # all have asked, and are being answered
            del self._awaited[longest]
            with contextlib.suppress(OSError):  # it has just left
                # Past TLS, whose state is its thread's.
                socket.socket.shutdown(longest, socket.SHUT_RDWR)
        return self._free.acquire(timeout=_SECONDS)

    def _leave(self, connection: socket.socket) -> None:
        with self._changing:
            self._awaited.pop(connection, None)
        self._free.release()
