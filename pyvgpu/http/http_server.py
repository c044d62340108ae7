"""HTTP(S) server on aiohttp with bounded connections: one event-loop thread, handlers in a pool.

The number of connections is limited. At the limit, a new connection evicts the one that has kept
us waiting the longest; a connection whose request is being answered is never evicted, and if all
are, the new one is closed. Each step has a timeout: the handshake, the request from its first byte
to its last, the reading of the response, and the time between two requests. A failed accept, for
lack of file descriptors or memory, is retried.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import logging
import math
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from aiohttp import HttpVersion10, HttpVersion11, web

from pyvgpu.http.http_messages import Head, HttpResponse, refusal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Mapping

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1  # after a failed accept
TELL_SECONDS = 1.0  # between two log lines on failed connections
MOST_FIELDS, LONGEST_LINE = 100, 1 << 16  # of a request's head
NAME = "pyvgpu"  # the Server header field
_BACKLOG = 128


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server."""

    connections: int
    handshake_seconds: float = 5
    request_seconds: float = 10  # from the first byte to the last, and for reading the response
    idle_seconds: float = 120  # between two requests, and before the first


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """The request handlers of a server."""

    # Returns the size of the body to read, or a response without reading it, in the event loop.
    accept: Callable[[Head], int | HttpResponse]
    # Runs in a thread for each request; an exception becomes status 500.
    answer: Callable[[Head, bytes], HttpResponse]
    # Whether the event loop is to call answer() itself, because it does not block: a thread would
    # wait for the GIL twice.
    quick: Callable[[Head], bool] = lambda _: False
    # Called with address and reason of failed connections, such as of clients that distrust us.
    lost: Callable[[str, str], None] = lambda _address, _reason: None


class Lost:
    """Logs failed connections, at most one line per second, with the number of the others."""

    def __init__(self) -> None:
        self._count, self._logged = 0, -math.inf

    def __call__(self, address: str, reason: str) -> None:
        """Count a failed connection, and log it unless another was logged just now."""
        self._count += 1
        if time.monotonic() < self._logged + TELL_SECONDS:
            return
        others = f", and {self._count - 1} more" if self._count > 1 else ""
        self._count, self._logged = 0, time.monotonic()
        log.info("lost a connection of %s: %s%s", address, reason, others)


class HttpServer:
    """Listens once it is constructed, and answers once :meth:`serve_forever` runs."""

    def __init__(
        self,
        address: tuple[str, int],
        service: Service,
        limits: ServerLimits,
        context: Callable[[], ssl.SSLContext] | None = None,
        clients: Collection[str] = (),
    ) -> None:
        """Listen at *address*, ``::`` for IPv4 as well; OSError if that fails.

        *context* is called for each connection. *clients* are common names, one of which a client
        certificate must have.
        """
        self.service = service
        self.limits = limits
        self.draining = False  # close each connection after its next response
        self._context = context
        self._clients = frozenset(clients)
        self._socket = _listen(*address)
        self._pool = concurrent.futures.ThreadPoolExecutor(
            limits.connections, thread_name_prefix="answer"
        )
        try:
            self._loop = asyncio.new_event_loop()  # now, while there are descriptors
        except BaseException:
            self._socket.close()
            raise
        self._ending: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._stopped = False
        self._places: dict[_ConnectionSlot, None] = {}
        self._awaited: dict[
            _ConnectionSlot, None
        ] = {}  # those that we wait for, the longest first

    @property
    def server_address(self) -> tuple[str, int]:
        """The address that it listens on."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def serve_forever(self) -> None:
        """Serve until ``shutdown``."""
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._ended.set()

    def shutdown(self) -> None:
        """End ``serve_forever``, and return once it has ended."""
        with self._lock:
            self._stopped = True
            ending = self._ending
            if ending is None:
                return
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(ending.set)
        self._ended.wait()

    def server_close(self) -> None:
        """Stop listening."""
        self._socket.close()
        if not self._loop.is_running():
            self._loop.close()
        self._pool.shutdown(wait=False)

    def __enter__(self) -> HttpServer:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self.server_close()

    async def _serve(self) -> None:
        loop = self._loop
        loop.set_exception_handler(lambda _, what: log.debug("%s", what.get("message")))
        with self._lock:
            if self._stopped:
                return
            ending = self._ending = asyncio.Event()
        manager = web.Server(self._handle)
        accepting = loop.create_task(self._accept(loop, manager))
        await ending.wait()
        accepting.cancel()
        for place in tuple(self._places):
            place.abort()
        await asyncio.gather(accepting, return_exceptions=True)
        await manager.shutdown(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _accept(self, loop: asyncio.AbstractEventLoop, manager: web.Server) -> None:
        failing = False
        host, port = self.server_address
        while True:
            try:
                accepted, address = await loop.sock_accept(self._socket)
            except OSError as exc:
                if not failing:
                    log.warning(
                        "cannot accept connections at %s:%s: %s; retrying every %s s",
                        host, port, exc, PAUSE_SECONDS,
                    )  # fmt: skip
                failing = True
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if failing:
                log.info("accepting connections at %s:%s again", host, port)
            failing = False
            if not self._has_place():
                accepted.close()
                continue
            place = _ConnectionSlot(accepted, str(address[0]).removeprefix(_MAPPED))
            self._places[place] = self._awaited[place] = None
            place.opening = loop.create_task(self._open(loop, manager, place))

    def _has_place(self) -> bool:
        if len(self._places) < self.limits.connections:
            return True
        longest = next(iter(self._awaited), None)
        if longest is None:
            return False  # all are being answered
        self.leave(longest)
        longest.abort()
        return True

    async def _open(
        self, loop: asyncio.AbstractEventLoop, manager: web.Server, place: _ConnectionSlot
    ) -> None:
        """Shake hands with a client, and wait for a request."""
        secure: dict[str, Any] = {}
        try:
            if self._context is not None:
                secure = {
                    "ssl": self._context(),
                    "ssl_handshake_timeout": self.limits.handshake_seconds,
                    "ssl_shutdown_timeout": 1,
                }
            transport, _ = await loop.connect_accepted_socket(
                lambda: _Connection(self, place, manager, loop), place.socket, **secure
            )
        except BaseException as exc:
            self.leave(place)
            place.socket.close()
            if not isinstance(exc, OSError):
                raise
            self.service.lost(place.address, str(exc) or "the handshake took too long")
            return
        place.transport = transport

    def stranger(self, transport: asyncio.BaseTransport) -> str:
        """Return why a client is not authorized, empty if it is."""
        if not self._clients:
            return ""
        certificate = transport.get_extra_info("peercert") or {}
        parts = [part for name in certificate.get("subject", ()) for part in name]
        names = {value for key, value in parts if key == "commonName"}
        if names & self._clients:
            return ""
        known = ", ".join(sorted(self._clients))
        return f"the client is {', '.join(names) or 'unnamed'}: must be one of {known}"

    def leave(self, place: _ConnectionSlot) -> None:
        """Free a place."""
        self._places.pop(place, None)
        self._awaited.pop(place, None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        connection = cast("_Connection", request.protocol)
        head = Head(request.method, request.raw_path, _fields_of(request))
        if head.fields.get("expect", "").lower() == "100-continue":
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        answer = await self._answer(connection, request, head)
        said = web.Response(body=answer.content, status=answer.code, headers={
            "Server": NAME, "Content-Type": answer.kind, **answer.fields,
        })  # fmt: skip
        if answer.last or self.draining:
            said.force_close()
        # Abort if the client does not read the response in time.
        connection.expect_within(self.limits.request_seconds)
        await said.prepare(request)
        await said.write_eof()
        connection.expect_within(None)
        return said

    async def _answer(
        self, connection: _Connection, request: web.BaseRequest, head: Head
    ) -> HttpResponse:
        if request.version not in (HttpVersion10, HttpVersion11):
            return refusal(400, "the first line must be as in GET /path HTTP/1.1")
        if len(request.headers) > MOST_FIELDS:
            return refusal(400, f"the head must have no more than {MOST_FIELDS} fields")
        wanted = self.service.accept(head)
        if isinstance(wanted, HttpResponse):
            return wanted
        try:
            content = await request.content.readexactly(wanted) if wanted else b""
        except asyncio.IncompleteReadError:
            return refusal(400, "the body is shorter than Content-Length says")
        connection.expect_within(None)
        self._awaited.pop(connection.place, None)
        try:
            if self.service.quick(head):
                return self.service.answer(head, content)
            return await self._loop.run_in_executor(self._pool, self.service.answer, head, content)
        except Exception:
            log.exception("could not answer %s", head.target)
            return refusal(500, "internal error, see the log")
        finally:
            if connection.place in self._places:
                self._awaited[connection.place] = None


class _ConnectionSlot:
    """A connection's place in the limit, from accept to close."""

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.socket = accepted
        self.address = address
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class _Connection(web.RequestHandler):
    """aiohttp's connection, with timeouts and client authorization."""

    def __init__(
        self,
        server: HttpServer,
        place: _ConnectionSlot,
        manager: web.Server,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=server.limits.idle_seconds,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
            max_headers=MOST_FIELDS,
            lingering_time=0,
            access_log=_quiet,
            logger=_quiet,
        )
        self.place = place
        self._ours = server
        self._asking = loop
        self._timer: asyncio.TimerHandle | None = None
        self._heard = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Authorize the client: its first request may arrive with the end of the handshake."""
        super().connection_made(transport)
        if stranger := self._ours.stranger(transport):
            self._heard = False
            self._ours.service.lost(self.place.address, stranger)
            self._end()

    def data_received(self, data: bytes) -> None:
        """Process data of a request, and start its timeout."""
        if not self._heard:
            return
        if self._timer is None and self.place in self._ours._awaited:
            self.expect_within(self._ours.limits.request_seconds)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the place."""
        self.expect_within(None)
        self._ours.leave(self.place)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request."""
        why = message if status == 400 and message else "internal error"
        fields = {"Server": NAME, "Connection": "close"}
        said = web.Response(text=f"{why}\n", status=status, headers=fields)
        said.force_close()
        return said

    def expect_within(self, seconds: float | None) -> None:
        """Close the connection unless this is called again within *seconds*; None: no timeout."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._asking.call_later(seconds, self._end)

    def write(self, content: bytes) -> None:
        """Send something before the response."""
        if self.transport is not None:
            self.transport.write(content)

    def _end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


_MAPPED = "::ffff:"  # before an IPv4 peer's address on a socket for both families
_quiet = logging.getLogger(f"{__name__}.requests")
_quiet.setLevel(logging.CRITICAL)  # otherwise any client could fill the log


def _listen(host: str, port: int) -> socket.socket:
    """Listen on an address; ``::`` is every address, of IPv6 and of IPv4.

    Without IPv6 in the kernel (``ipv6.disable=1``) it is every address of IPv4.
    """
    if host == "::":
        try:
            return _bind(host, port)
        except OSError as exc:
            if exc.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
        host = "0.0.0.0"  # noqa: S104 - the caller asked for every address
    return _bind(host, port)


def _bind(host: str, port: int) -> socket.socket:
    version_6 = ":" in host
    listening = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if version_6 else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=version_6 and host == "::" and socket.has_dualstack_ipv6(),
    )
    listening.setblocking(False)
    return listening


def _fields_of(request: web.BaseRequest) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    for name, value in request.headers.items():
        key = name.lower()
        fields[key] = f"{fields[key]}, {value}" if key in fields else value
    return fields
