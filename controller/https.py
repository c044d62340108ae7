"""An HTTPS server for programs of the cluster that ask something in JSON: a route at each path.

A certificate that changes holds for new connections. Where client certificates are wanted, the
context says whose; *clients* says by which of their names they may come. What a connection may do
says httpserver.py.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from pyvgpu import httpmessages, httpserver, pages

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Mapping

    from pyvgpu.controller import replies

MOST_BYTES = 16 << 20  # the API server takes objects of 3 MiB; as JSON in JSON they may grow
MOST_CONNECTIONS = 256
HANDSHAKE_SECONDS = 5
REQUEST_SECONDS = 10  # from its first byte to its last
IDLE_SECONDS = 120  # longer than the API server keeps one, so that it is the one to close it


class Server(httpserver.Server):
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
        shown: Mapping[str, pages.Route] | None = None,
    ) -> None:
        """Listen; *observe* is told the path, the result and the seconds of each request.

        *clients* are common names, of which a client's certificate must have one; if there are
        any, the context must ask for a certificate. The routes *quick* wait for nothing, and no
        other request is answered meanwhile. *shown* is what is answered to GET, by path.
        """
        asked = _Asked(routes, shown or {}, observe, most_bytes)
        paths = frozenset(quick)
        super().__init__(
            address,
            httpserver.Service(
                asked.accept,
                asked.answer,
                lambda head: pages.split(head.target)[0] in paths,
                httpserver.Lost(),
            ),
            httpserver.Limits(
                most_connections or MOST_CONNECTIONS,
                handshake_seconds=HANDSHAKE_SECONDS,
                request_seconds=REQUEST_SECONDS,
                idle_seconds=IDLE_SECONDS,
            ),
            context,
            clients,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """What is answered to which question."""

    routes: Mapping[str, replies.Route]
    shown: Mapping[str, pages.Route]
    observe: Callable[[str, str, float], None]
    most_bytes: int

    def accept(self, head: httpmessages.Head) -> int | httpmessages.Answer:
        """Return how long the body is; what is no question is refused."""
        path, _ = pages.split(head.target)  # the API server says its timeout behind it
        if head.method == "POST":
            return self._length(path, head.fields)
        if head.method != "GET":
            return httpmessages.refusal(501, "questions are sent by POST")
        if path not in self.shown:
            code = 405 if path in self.routes else 404
            return httpmessages.refusal(code, "questions are sent by POST")
        return 0

    def _length(self, path: str, fields: Mapping[str, str]) -> int | httpmessages.Answer:
        kind = fields.get("content-type", "").partition(";")[0].strip().lower()
        length = fields.get("content-length", "")
        if path not in self.routes:
            return httpmessages.refusal(404, "there is no such path")
        if kind != "application/json":
            return httpmessages.refusal(415, "Content-Type must be application/json")
        if not (length.isascii() and length.isdigit()):
            return httpmessages.refusal(411, "Content-Length must be given")
        if len(length) > 10 or int(length) > self.most_bytes:
            return httpmessages.refusal(
                413, f"the body must have no more than {self.most_bytes} bytes"
            )
        return int(length)

    def answer(self, head: httpmessages.Head, content: bytes) -> httpmessages.Answer:
        """Answer a question, or show a page."""
        begun = time.monotonic()
        path, query = pages.split(head.target)
        if head.method == "POST":
            reply = self.routes[path](content)
            result = reply.result
            answer = (
                httpmessages.Answer(reply.content, pages.JSON)
                if reply.code == 200
                else httpmessages.refusal(reply.code, reply.content.decode())
            )
        else:
            answer = pages.shown(self.shown[path], head, query)
            result = str(answer.code)
        self.observe(path, result, time.monotonic() - begun)
        return answer
