"""HTTPS server for JSON requests from the cluster, with a route for each path.

A renewed certificate applies to new connections. If client certificates are required, the context
holds the CA that verifies them, and *clients* the common names to accept. http_server.py sets the
limits of a connection.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from pyvgpu.http import endpoints, http_messages, http_server

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Mapping

    from pyvgpu.http import replies

MOST_BYTES = 16 << 20  # the API server accepts objects of 3 MiB; as JSON in JSON they may grow
MOST_CONNECTIONS = 256
HANDSHAKE_SECONDS = 5
REQUEST_SECONDS = 10  # from its first byte to its last
IDLE_SECONDS = 120  # longer than the API server's, so the API server closes first


class TlsServer(http_server.HttpServer):
    """Serves *routes* until ``shutdown``."""

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, replies.Route],
        context: Callable[[], ssl.SSLContext],
        observe: Callable[[str, str, float], None],
        *,
        most_bytes: int = MOST_BYTES,
        most_connections: int | None = None,
        clients: Collection[str] = (),
        quick: Collection[str] = (),
        shown: Mapping[str, endpoints.Route] | None = None,
    ) -> None:
        """Listen; *observe* is called with the path, the result and the seconds of each request.

        *clients* are the common names of which a client's certificate must have one; if there are
        any, the context must require a certificate. The routes *quick* never block, and run while
        no other request is answered. *shown* are the routes for GET, by path.
        """
        asked = _RequestHandler(routes, shown or {}, observe, most_bytes)
        paths = frozenset(quick)
        super().__init__(
            address,
            http_server.Service(
                asked.accept,
                asked.answer,
                lambda head: endpoints.split(head.target)[0] in paths,
                http_server.Lost(),
            ),
            http_server.ServerLimits(
                most_connections or MOST_CONNECTIONS,
                handshake_seconds=HANDSHAKE_SECONDS,
                request_seconds=REQUEST_SECONDS,
                idle_seconds=IDLE_SECONDS,
            ),
            context,
            clients,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _RequestHandler:
    """The routes, and how to answer from them."""

    routes: Mapping[str, replies.Route]
    shown: Mapping[str, endpoints.Route]
    observe: Callable[[str, str, float], None]
    most_bytes: int

    def accept(self, head: http_messages.Head) -> int | http_messages.HttpResponse:
        """Return the length of the body, or the refusal of an invalid request."""
        path, _ = endpoints.split(head.target)  # the API server appends its timeout
        if head.method == "POST":
            return self._length(path, head.fields)
        if head.method != "GET":
            return http_messages.refusal(501, "requests must use POST")
        if path not in self.shown:
            code = 405 if path in self.routes else 404
            return http_messages.refusal(code, "requests must use POST")
        return 0

    def _length(self, path: str, fields: Mapping[str, str]) -> int | http_messages.HttpResponse:
        kind = fields.get("content-type", "").partition(";")[0].strip().lower()
        length = fields.get("content-length", "")
        if path not in self.routes:
            return http_messages.refusal(404, "there is no such path")
        if kind != "application/json":
            return http_messages.refusal(415, "Content-Type must be application/json")
        if not (length.isascii() and length.isdigit()):
            return http_messages.refusal(411, "Content-Length must be given")
        if len(length) > 10 or int(length) > self.most_bytes:
            return http_messages.refusal(
                413, f"the body must have no more than {self.most_bytes} bytes"
            )
        return int(length)

    def answer(self, head: http_messages.Head, content: bytes) -> http_messages.HttpResponse:
        """Answer a POST from its route, a GET with its page."""
        begun = time.monotonic()
        path, query = endpoints.split(head.target)
        if head.method == "POST":
            reply = self.routes[path](content)
            result = reply.result
            answer = (
                http_messages.HttpResponse(reply.content, endpoints.JSON)
                if reply.code == 200
                else http_messages.refusal(reply.code, reply.content.decode())
            )
        else:
            answer = endpoints.shown(self.shown[path], head, query)
            result = str(answer.code)
        self.observe(path, result, time.monotonic() - begun)
        return answer
