"""An HTTPS server that answers the API server: a mutation at each path, and nothing else.

Handshakes and requests each happen in a thread of their connection, in a bounded time, so that
nobody who connects and says nothing keeps another waiting. A certificate that changes holds for
new connections; the API server keeps its old ones.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller.webhook import review

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20  # the API server takes objects of 3 MiB; as JSON in JSON they may grow
MOST_CONNECTIONS = 256
HANDSHAKE_SECONDS = 5
REQUEST_SECONDS = 10
IDLE_SECONDS = 120  # longer than the API server keeps one, so that it is the one to close it


class Server(http.server.ThreadingHTTPServer):
    """Serves *routes*, a mutation for each path, until ``shutdown``."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, review.Mutation],
        context: Callable[[], ssl.SSLContext],
        observe: Callable[[str, str, float], None],
    ) -> None:
        """Listen; *observe* is told the path, the result and the seconds of each request."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.routes = routes
        self.observe = observe
        self.draining = False
        self._context = context
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in its thread."""
        if not self._free.acquire(blocking=False):
            log.warning(
                "refused a connection of %s: %d are open", client_address, MOST_CONNECTIONS
            )
            return
        try:
            request.settimeout(HANDSHAKE_SECONDS)
            with self._context().wrap_socket(request, server_side=True) as secure:
                _Handler(secure, client_address, self)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say what broke a connection; most often it is a client that does not trust us."""
        log.info("lost a connection of %s: %s", client_address[0], sys.exc_info()[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "pyvgpu"
    sys_version = ""
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # head and body leave together
    server: Server

    def handle(self) -> None:
        """Answer the requests of a connection, until it is closed or silent."""
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            super().handle()

    def do_POST(self) -> None:
        """Answer a review."""
        begun = time.monotonic()
        path = self.path.partition("?")[0]  # the API server says its timeout behind it
        mutation = self.server.routes.get(path)
        if mutation is None:
            self._refuse(404, "there is no such path")
            return
        content = self._read()
        if content is None:
            return
        try:
            request = review.read(content)
        except errors.DataError as exc:
            self.server.observe(path, "bad request", time.monotonic() - begun)
            self._refuse(400, str(exc))
            return
        answer = review.ask(mutation, request)
        self._send(200, "application/json", review.write(request, answer))
        self.server.observe(path, _result(answer), time.monotonic() - begun)

    def do_GET(self) -> None:
        """Refuse what is not for here."""
        self._refuse(405 if self.path in self.server.routes else 404, "reviews are sent by POST")

    def _read(self) -> bytes | None:
        """Return the body, None where it was refused."""
        kind = self.headers.get_content_type()
        length = self.headers.get("Content-Length", "")
        if kind != "application/json":
            self._refuse(415, "Content-Type must be application/json")
        elif not (length.isascii() and length.isdigit()):
            self._refuse(411, "Content-Length must be given")
        elif len(length) > 10 or int(length) > MOST_BYTES:
            self._refuse(413, f"the body must have no more than {MOST_BYTES} bytes")
        else:
            self.connection.settimeout(REQUEST_SECONDS)
            content = self.rfile.read(int(length))
            self.connection.settimeout(IDLE_SECONDS)
            if len(content) == int(length):
                return content
            self.close_connection = True
        return None

    def _refuse(self, code: int, why: str) -> None:
        self.close_connection = True  # what was not read would be taken for the next request
        self._send(code, "text/plain; charset=utf-8", why.encode() + b"\n")

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection or self.server.draining:
            self.send_header("Connection", "close")  # which sets close_connection, too
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep requests out of the log; what is refused there is said by metrics."""
        log.debug(format, *args)


def _result(answer: review.Answer) -> str:
    if answer.failed:
        return "failed"
    if answer.refusal:
        return "refused"
    return "changed" if answer.operations else "unchanged"
