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
import http.server
import logging
import sys
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any

from pyvgpu import crowd, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Route = Callable[["Asked"], "Answer"]

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
FIGURES = "text/plain; version=0.0.4; charset=utf-8"  # as Prometheus reads them
JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
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
class Answer:
    """What a reader is answered."""

    content: bytes
    kind: str = _TEXT  # of the content, for the field Content-Type
    code: int = 200
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)  # more of the head


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


class _Server(crowd.Server):
    """Kubelet's probes find a place, or kubelet would start us again and again."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.pages = pages
        super().__init__((host, port), _Handler, MOST_READERS)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say nothing of readers who leave: anybody could fill the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("could not serve %s", client_address[0])


def _listen(host: str, port: int, pages: Pages) -> _Server:
    try:
        return _Server(host, port, pages)
    except OSError as exc:
        raise errors.UnavailableError(
            f"--listen {host}:{port}: {exc.strerror or exc}; another port will do, such as "
            f"{port % 65535 + 1}"
        ) from exc


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version = "pyvgpu"
    sys_version = ""

    def do_GET(self) -> None:
        with self.server.answering(self.connection):
            try:
                answer = self._answer()
            except Exception:
                log.exception("could not answer %s", self.path)
                answer = Answer(b"a fault, see the log\n", code=500)
        self._send(answer)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self) -> Answer:
        pages = self.server.pages
        path, query = split(self.path)
        match path:
            case "/metrics":
                return Answer(pages.figures(), FIGURES)
            case "/healthz":
                return _said(pages.alive())
            case "/readyz":
                return _said(pages.alive() or pages.ready(), pages.remark())
            case _ if path in pages.more:
                fields = {name.lower(): value for name, value in self.headers.items()}
                return pages.more[path](Asked(query, fields))
            case _:
                known = ["/metrics", "/healthz", "/readyz", *pages.more]
                return Answer(f"there are {', '.join(known)}\n".encode(), code=404)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        for name, value in heads(answer).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Say nothing: a probe a second would fill the log."""


def split(target: str) -> tuple[str, Mapping[str, str]]:
    """Return the path that is asked for, and what stands behind it by names; not too many."""
    path, _, query = target.partition("?")
    try:
        return path, dict(urllib.parse.parse_qsl(query, max_num_fields=_MOST_NAMES))
    except ValueError:
        return path, {}


def heads(answer: Answer) -> Mapping[str, str]:
    """Return what the head of an answer says of it."""
    # That of 304 would be the length of what is not sent.
    length = {} if answer.code == 304 else {"Content-Length": str(len(answer.content))}
    return {"Content-Type": answer.kind, **length, **answer.fields}


def _said(wrong: str, remark: str = "") -> Answer:
    return Answer(f"{wrong or remark or OK}\n".encode(), code=503 if wrong else 200)
