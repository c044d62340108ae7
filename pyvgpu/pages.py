"""Figures and health of a program, for whoever is near: Prometheus, kubelet, a person with curl.

It only answers: there is nothing here to change anything by. Without an address it listens on the
loopback device alone. So many ask at once, and no more: where all are being answered, others are
turned away; who asks nothing, or does not read the answer, makes room for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import logging
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
FIGURES = "text/plain; version=0.0.4; charset=utf-8"  # as Prometheus reads them
JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_SECONDS = 5  # that a reader may take
MOST_READERS = 32  # at once


def well() -> str:
    """Say that there is nothing to complain of."""
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What is answered at one more path."""

    kind: str  # of the content, for the header Content-Type
    content: Callable[[], bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Pages:
    """What is answered; *alive* and *ready* return what is wrong, an empty text if nothing is."""

    figures: Callable[[], bytes]
    alive: Callable[[], str] = well
    ready: Callable[[], str] = well
    more: Mapping[str, Page] = dataclasses.field(default_factory=dict)  # by path


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


class _Server(http.server.ThreadingHTTPServer):
    """Where all places are taken, whoever has kept us waiting longest makes room for the next.

    Else a few who connect and say nothing, or read nothing, would turn kubelet's probes away, and
    kubelet would start us again and again.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self._free = threading.BoundedSemaphore(MOST_READERS)
        self._changing = threading.Lock()
        self._awaited: dict[socket.socket, None] = {}  # the longest first
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
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
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say nothing of readers who leave: anybody could fill the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("could not serve %s", client_address[0])

    @contextlib.contextmanager
    def answering(self, reader: socket.socket) -> Iterator[None]:
        """Note that inside it is we who keep *reader* waiting."""
        with self._changing:
            self._awaited.pop(reader, None)
        try:
            yield
        finally:
            with self._changing:
                self._awaited[reader] = None

    def _has_place(self) -> bool:
        if self._free.acquire(blocking=False):
            return True
        with self._changing:
            longest = next(iter(self._awaited), None)
            if longest is None:
                return False  # all have asked, and are being answered
            del self._awaited[longest]
            with contextlib.suppress(OSError):  # it has just left
                longest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=_SECONDS)

    def _leave(self, reader: socket.socket) -> None:
        with self._changing:
            self._awaited.pop(reader, None)
        self._free.release()


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
                answer = 500, b"a fault, see the log\n", _TEXT
        self._send(*answer)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self) -> tuple[int, bytes, str]:
        pages = self.server.pages
        match self.path.partition("?")[0]:
            case "/metrics":
                return 200, pages.figures(), FIGURES
            case "/healthz":
                return _said(pages.alive())
            case "/readyz":
                return _said(pages.alive() or pages.ready())
            case path if path in pages.more:
                return 200, pages.more[path].content(), pages.more[path].kind
            case _:
                known = ["/metrics", "/healthz", "/readyz", *pages.more]
                return 404, f"there are {', '.join(known)}\n".encode(), _TEXT

    def _send(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing: a probe a second would fill the log."""


def _said(wrong: str) -> tuple[int, bytes, str]:
    return 503 if wrong else 200, f"{wrong or 'ok'}\n".encode(), _TEXT
