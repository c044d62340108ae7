"""Figures and health of a program, for whoever is near: Prometheus, kubelet, a person with curl.

It only answers: there is nothing here to change anything by. Without an address it listens on the
loopback device alone. So many ask at once, and no more: where all are being answered, others are
turned away; who asks nothing, or does not read the answer, makes room for them. And how one of our
programs asks another for what it answers so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import logging
import threading
import urllib.parse
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.httpmessages import Answer, Head, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu import httpserver

    Route = Callable[["Asked"], "Answer"]

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
FIGURES = "text/plain; version=0.0.4; charset=utf-8"  # as Prometheus reads them
JSON = "application/json"
_SECONDS = 5  # that a reader may take
MOST_READERS = 32  # at once
_MOST_NAMES = 100  # in what stands behind a path


OK = "ok"  # what is answered where nothing is wrong


def well() -> str:
    """Say that there is nothing to complain of."""
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a reader has sent, besides the path."""

    query: Mapping[str, str]  # of each name the last value
    fields: Mapping[str, str]  # of the head, by names in small letters


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What is answered at one more path, whatever was sent."""

    kind: str  # of the content, for the field Content-Type
    content: Callable[[], bytes]

    def __call__(self, _asked: Asked) -> Answer:
        """Answer."""
        return Answer(self.content(), self.kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Pages:
    """What is answered; *alive* and *ready* return what is wrong, an empty text if nothing is.

    *remark* returns what an administrator should know of a program that is ready.
    """

    figures: Callable[[], bytes]
    alive: Callable[[], str] = well
    ready: Callable[[], str] = well
    more: Mapping[str, Route] = dataclasses.field(default_factory=dict)  # by path
    remark: Callable[[], str] = well


@contextlib.contextmanager
def serving(address: str | None, pages: Pages) -> Iterator[int]:
    """Answer at *address* (None: nowhere) while the block runs; yield the port."""
    if address is None:
        yield 0
        return
    with _listen(*read_address(address), pages) as server:
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def read_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return the address and the port in ``9470``, ``10.0.0.7:9470`` or ``[::]:9470``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        port = ""
    if not port.isascii() or not port.isdigit() or not int(port) < 1 << 16 or (colon and not host):
        raise errors.UsageError(
            f"{option} {text!r}: must be a port, or an address and a port, such as 9470, "
            "0.0.0.0:9470 or [::]:9470"
        )
    return host or LOOPBACK, int(port)


def ask(address: tuple[str, int], path: str, seconds: float, most: int) -> Answer:
    """Return what is answered at *path*, of the content *most* bytes; UnavailableError if nothing.

    *seconds* are for each step.
    """
    connection = http.client.HTTPConnection(*address, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        with connection.getresponse() as answer:  # which may be longer, and has the connection
            return Answer(answer.read(most), answer.getheader("Content-Type", ""), answer.status)
    except (OSError, http.client.HTTPException) as exc:
        raise errors.UnavailableError(str(exc)) from exc
    finally:
        connection.close()


def _listen(host: str, port: int, pages: Pages) -> httpserver.Server:
    from pyvgpu import httpserver  # the help of commands needs no extra

    try:
        return httpserver.Server(
            (host, port),
            httpserver.Service(_accept, _Reading(pages).answer),
            httpserver.Limits(MOST_READERS, request_seconds=_SECONDS, idle_seconds=_SECONDS),
        )
    except OSError as exc:
        raise errors.UnavailableError(
            f"--listen {host}:{port}: {exc.strerror or exc}; another port will do, such as "
            f"{port % 65535 + 1}"
        ) from exc


def _accept(head: Head) -> int | Answer:
    if head.method not in ("GET", "HEAD"):
        return refusal(501, "there is nothing to change here")
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Reading:
    """Answers readers."""

    pages: Pages

    def answer(self, head: Head, _: bytes) -> Answer:
        """Answer one, and close the connection: a reader comes seldom."""
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
                return lambda _: Answer(f"there are {', '.join(known)}\n".encode(), code=404)


def shown(route: Route, head: Head, query: Mapping[str, str]) -> Answer:
    """Return what a page answers; a fault of it is logged, and said in an answer."""
    # A body that nobody reads would be taken for the next request.
    last = bool(head.fields.keys() & {"content-length", "transfer-encoding"})
    try:
        answer = route(Asked(query, head.fields))
    except Exception:
        log.exception("could not answer %s", head.target)
        answer = Answer(b"a fault, see the log\n", code=500)
    return dataclasses.replace(answer, last=last)


def split(target: str) -> tuple[str, Mapping[str, str]]:
    """Return the path that is asked for, and what stands behind it by names; not too many."""
    path, _, query = target.partition("?")
    try:
        return path, dict(urllib.parse.parse_qsl(query, max_num_fields=_MOST_NAMES))
    except ValueError:
        return path, {}


def _said(wrong: str, remark: str = "") -> Answer:
    return Answer(f"{wrong or remark or OK}\n".encode(), code=503 if wrong else 200)
