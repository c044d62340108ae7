"""An HTTPS server for programs of the cluster that ask something in JSON: a route at each path.

Handshakes and requests each happen in a thread of their connection, in a bounded time, however
little is sent at once, so that nobody who says nothing, or says it slowly, keeps another waiting;
where all places are taken, whoever was silent longest makes room. A certificate that changes
holds for new connections. Where client certificates are wanted, the context says whose; *clients*
says by which of their names they may come.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import io
import logging
import math
import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyvgpu import crowd, pages

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

log = logging.getLogger(__name__)

MOST_FIELDS, LONGEST_LINE = 100, 1 << 16  # of a request's head
MOST_BYTES = 16 << 20  # the API server takes objects of 3 MiB; as JSON in JSON they may grow
MOST_CONNECTIONS = 256
HANDSHAKE_SECONDS = 5
REQUEST_SECONDS = 10  # from its first byte to its last
TELL_SECONDS = 1.0  # between two words on connections that broke
IDLE_SECONDS = 120  # longer than the API server keeps one, so that it is the one to close it


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What is answered: JSON, or one line of text where the code is not 200."""

    content: bytes
    result: str  # for figures
    code: int = 200


Route = Callable[[bytes], Reply]


class Server(crowd.Server):
    """Serves *routes* until ``shutdown``."""

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        context: Callable[[], ssl.SSLContext],
        observe: Callable[[str, str, float], None],
        *,
        most_bytes: int = MOST_BYTES,
        most_connections: int | None = None,
        clients: Collection[str] = (),
        shown: Mapping[str, pages.Route] | None = None,
    ) -> None:
        """Listen; *observe* is told the path, the result and the seconds of each request.

        *clients* are common names, of which a client's certificate must have one; if there are
        any, the context must ask for a certificate. *shown* is what is answered to GET, by path.
        """
        super().__init__(address, _Handler, most_connections or MOST_CONNECTIONS)
        self.routes = routes
        self.shown = shown or {}
        self.observe = observe
        self.most_bytes = most_bytes
        self.draining = False
        self._lost = 0  # connections that broke, since it was said
        self._told = -math.inf  # when
        self._context = context
        self._clients = frozenset(clients)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; the handshake is its thread's."""
        plain, address = super().get_request()
        context = self._context()
        secure = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        return secure, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in its thread."""
        request.settimeout(HANDSHAKE_SECONDS)
        request.do_handshake()
        if self._clients:
            self._check(request.getpeercert() or {})
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say what broke a connection; most often it is a client that does not trust us.

        Anybody may connect, so of many it is said of one and how many there were.
        """
        self._lost += 1
        if time.monotonic() < self._told + TELL_SECONDS:
            return
        others = f", and {self._lost - 1} more" if self._lost > 1 else ""
        self._lost, self._told = 0, time.monotonic()
        log.info("lost a connection of %s: %s%s", client_address[0], sys.exc_info()[1], others)

    def _check(self, certificate: Mapping[str, Any]) -> None:
        parts = [part for name in certificate.get("subject", ()) for part in name]
        names = {value for key, value in parts if key == "commonName"}
        if not names & self._clients:
            raise ssl.SSLError(
                f"the client is {', '.join(names) or 'nobody'}: must be one of "
                f"{', '.join(sorted(self._clients))}"
            )


class _Patient(io.RawIOBase):
    """Reads from a connection until a time, however little comes at once."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self.until = 0.0  # by the monotonic clock

    def readable(self) -> bool:
        """Tell whether it can be read from."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there; TimeoutError once it is too late."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


_VERSIONS = frozenset({"HTTP/1.0", "HTTP/1.1"})


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "pyvgpu"
    sys_version = ""
    disable_nagle_algorithm = True
    raw_requestline: bytes
    server: Server

    def setup(self) -> None:
        """Read with an end to our patience."""
        super().setup()
        self._patient = _Patient(self.connection)
        self._reader = io.BufferedReader(self._patient, 1 << 16)
        self.rfile = self._reader

    def handle(self) -> None:
        """Answer the requests of a connection, until it is closed, silent or slow."""
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            super().handle()

    def handle_one_request(self) -> None:
        """Wait for a request, and then for its end, which comes soon or never."""
        self._patient.until = time.monotonic() + IDLE_SECONDS
        if not self._reader.peek(1):
            self.close_connection = True
            return
        self._patient.until = time.monotonic() + REQUEST_SECONDS
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the head of a request; tell whether it is one, else it has been refused.

        The standard library's own has it parsed as a mail, which takes as long as an answer.
        """
        self.close_connection = True
        self.requestline = self.raw_requestline.decode("latin-1").rstrip("\r\n")
        words = self.requestline.split()
        if len(words) != 3 or words[2] not in _VERSIONS:
            self._refuse(400, "the first line must be as in POST /path HTTP/1.1")
            return False
        self.command, self.path, self.request_version = words
        fields = self._read_fields()
        if fields is None:
            self._refuse(400, "each line of the head must be as in Content-Type: application/json")
            return False
        self._fields = fields
        wish = fields.get("connection", "").lower()
        last = self.request_version != self.protocol_version and wish != "keep-alive"
        self.close_connection = last or wish == "close"
        if fields.get("expect", "").lower() == "100-continue":
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_fields(self) -> dict[str, str] | None:
        """Return the fields of a head by their names in small letters; None if they are none."""
        fields: dict[str, str] = {}
        for _ in range(MOST_FIELDS):
            line = self._reader.readline(LONGEST_LINE)
            if line in (b"\r\n", b"\n"):
                return fields
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or not line.endswith(b"\n") or name != name.strip():
                return None
            if fields.setdefault(name.lower(), value.strip()) != value.strip():
                fields[name.lower()] += f", {value.strip()}"
        return None

    def do_POST(self) -> None:
        """Answer a question."""
        begun = time.monotonic()
        path = self.path.partition("?")[0]  # the API server says its timeout behind it
        route = self.server.routes.get(path)
        if route is None:
            self._refuse(404, "there is no such path")
            return
        content = self._read()
        if content is None:
            return
        with self.server.answering(self.connection):
            reply = route(content)
        if reply.code == 200:
            self._send(reply.code, "application/json", reply.content)
        else:
            self._refuse(reply.code, reply.content.decode())
        self.server.observe(path, reply.result, time.monotonic() - begun)

    def do_GET(self) -> None:
        """Show a page, and refuse what is not for here."""
        begun = time.monotonic()
        path, query = pages.split(self.path)
        route = self.server.shown.get(path)
        if route is None:
            self._refuse(405 if path in self.server.routes else 404, "questions are sent by POST")
            return
        if self._fields.keys() & {"content-length", "transfer-encoding"}:
            self.close_connection = True  # what follows would be taken for the next request
        with self.server.answering(self.connection):
            try:
                answer = route(pages.Asked(query, self._fields))
            except Exception:
                log.exception("could not answer %s", path)
                answer = pages.Answer(b"a fault, see the log\n", code=500)
        self._answer(answer)
        self.server.observe(path, str(answer.code), time.monotonic() - begun)

    def _read(self) -> bytes | None:
        """Return the body, None where it was refused."""
        most = self.server.most_bytes
        kind = self._fields.get("content-type", "").partition(";")[0].strip().lower()
        length = self._fields.get("content-length", "")
        if kind != "application/json":
            self._refuse(415, "Content-Type must be application/json")
        elif length and "transfer-encoding" in self._fields:
            # A proxy may take the other one for the end of the request: RFC 9112, 6.1.
            self._refuse(400, "Content-Length and Transfer-Encoding must not both be given")
        elif not (length.isascii() and length.isdigit()):
            self._refuse(411, "Content-Length must be given")
        elif len(length) > 10 or int(length) > most:
            self._refuse(413, f"the body must have no more than {most} bytes")
        else:
            content = self.rfile.read(int(length))
            if len(content) == int(length):
                return content
            self.close_connection = True
        return None

    def _refuse(self, code: int, why: str) -> None:
        self.close_connection = True  # what was not read would be taken for the next request
        self._send(code, "text/plain; charset=utf-8", why.encode() + b"\n")

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self._answer(pages.Answer(content, kind, code))

    def _answer(self, answer: pages.Answer) -> None:
        self.close_connection = self.close_connection or self.server.draining
        fields = {
            "Server": self.server_version,
            "Date": self.date_time_string(),
            **pages.heads(answer),
            **({"Connection": "close"} if self.close_connection else {}),
        }
        lines = [f"HTTP/1.1 {answer.code} {self.responses[http.HTTPStatus(answer.code)][0]}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        head = "\r\n".join(lines) + "\r\n\r\n"
        self.connection.settimeout(REQUEST_SECONDS)
        self.connection.sendall(head.encode() + answer.content)  # head and body leave together

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep requests out of the log; what is refused there is said by metrics."""
        log.debug(format, *args)
