"""Read-only HTTP endpoints /metrics, /healthz and /readyz of a program, and a client for them.

Without an address the server listens on the loopback device only. The number of connections is
limited: if all are being answered, new ones are closed; a client that sends no request, or does
not read the response, is dropped in favour of a new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import http.client
import logging
import threading
import urllib.parse
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.http.http_messages import Head, HttpResponse, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.http import http_server

    Route = Callable[["HttpRequest"], "HttpResponse"]

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
FIGURES = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format
JSON = "application/json"
_SECONDS = 5  # timeout of a client
MOST_READERS = 32  # concurrent connections
_MOST_NAMES = 100  # parameters of a query


OK = "ok"  # the response of a healthy program


def well() -> str:
    """Report no problem."""
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class HttpRequest:
    """A client's request, without its path."""

    query: Mapping[str, str]  # the last value of each name
    fields: Mapping[str, str]  # header fields by lower-case name


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A route whose content does not depend on the request."""

    kind: str  # the Content-Type
    content: Callable[[], bytes]

    def __call__(self, _asked: HttpRequest) -> HttpResponse:
        """Answer."""
        return HttpResponse(self.content(), self.kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Pages:
    """The routes; *alive* and *ready* return the problem, an empty text if there is none.

    *remark* returns a note for administrators on a program that is ready.
    """

    figures: Callable[[], bytes]
    alive: Callable[[], str] = well
    ready: Callable[[], str] = well
    more: Mapping[str, Route] = dataclasses.field(default_factory=dict)  # by path
    remark: Callable[[], str] = well


@contextlib.contextmanager
def serving(address: str | None, pages: Pages, option: str = "--listen") -> Iterator[int]:
    """Serve at *address* (None: do not serve) while the block runs; yield the port.

    Errors name the *option* that gave the address.
    """
    if address is None:
        yield 0
        return
    with _listen(read_address(address, option), pages, option) as server:
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def read_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return the address and the port in ``5678``, ``10.0.0.7:5678`` or ``[::]:5678``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        port = ""
    if not port.isascii() or not port.isdigit() or not int(port) < 1 << 16 or (colon and not host):
        raise errors.UsageError(
            f"{option} {text!r}: must be a port, or an address and a port, such as 5678, "
            "127.0.0.1:5678 or [::]:5678"
        )
    return host or LOOPBACK, int(port)


def format_address(host: str, port: int) -> str:
    """Return *host* and *port* as :func:`read_address` reads them, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask(address: tuple[str, int], path: str, seconds: float, most: int) -> HttpResponse:
    """Return the response at *path*, truncated to *most* bytes; UnavailableError if none.

    *seconds* is the timeout of each step.
    """
    connection = http.client.HTTPConnection(*address, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        with connection.getresponse() as answer:  # closes the connection of a longer response
            return HttpResponse(
                answer.read(most), answer.getheader("Content-Type", ""), answer.status
            )
    except (OSError, http.client.HTTPException) as exc:
        raise errors.UnavailableError(errors.reason_of(exc)) from exc
    finally:
        connection.close()


def _listen(address: tuple[str, int], pages: Pages, option: str) -> http_server.HttpServer:
    from pyvgpu.http import http_server  # lazy: --help must work without the extra

    try:
        return http_server.HttpServer(
            address,
            http_server.Service(_accept, _Reading(pages).answer),
            http_server.ServerLimits(
                MOST_READERS, request_seconds=_SECONDS, idle_seconds=_SECONDS
            ),
        )
    except OSError as exc:
        at, why = format_address(*address), exc.strerror or exc
        if exc.errno == errno.EADDRNOTAVAIL:
            own = format_address("127.0.0.1", address[1])
            raise errors.UnavailableError(
                f"{option} {at}: {why}; must be an address of this machine, such as {own}"
            ) from exc
        raise errors.UnavailableError(
            f"{option} {at}: {why}; use another port, such as {max(address[1] % 65535 + 1, 1024)}"
        ) from exc


def _accept(head: Head) -> int | HttpResponse:
    if head.method not in ("GET", "HEAD"):
        return refusal(501, "only GET and HEAD are supported")
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Reading:
    """Answers requests."""

    pages: Pages

    def answer(self, head: Head, _: bytes) -> HttpResponse:
        """Answer one request, and close the connection: clients come seldom."""
        path, query = split(head.target)
        answer = shown(self._route(path), head, query)
        return dataclasses.replace(answer, last=True)

    def _route(self, path: str) -> Route:
        pages = self.pages
        match path:
            case "/metrics":
                return Page(FIGURES, pages.figures)
            case "/healthz":
                return lambda _: _said(pages.alive())
            case "/readyz":
                return lambda _: _said(pages.alive() or pages.ready(), pages.remark())
            case _ if path in pages.more:
                return pages.more[path]
            case _:
                known = ["/metrics", "/healthz", "/readyz", *pages.more]
                return lambda _: HttpResponse(f"there are {', '.join(known)}\n".encode(), code=404)


def shown(route: Route, head: Head, query: Mapping[str, str]) -> HttpResponse:
    """Return a route's response; its exception is logged and becomes status 500."""
    # Close the connection after a request with a body: it would be parsed as the next request.
    last = bool(head.fields.keys() & {"content-length", "transfer-encoding"})
    try:
        answer = route(HttpRequest(query, head.fields))
    except Exception:
        log.exception("could not answer %s", head.target)
        answer = HttpResponse(b"internal error, see the log\n", code=500)
    return dataclasses.replace(answer, last=last)


def split(target: str) -> tuple[str, Mapping[str, str]]:
    """Return the path and the query parameters of *target*; none if there are too many."""
    path, _, query = target.partition("?")
    if not query:
        return path, {}
    try:
        return path, dict(urllib.parse.parse_qsl(query, max_num_fields=_MOST_NAMES))
    except ValueError:
        return path, {}


def _said(wrong: str, remark: str = "") -> HttpResponse:
    return HttpResponse(f"{wrong or remark or OK}\n".encode(), code=503 if wrong else 200)
