"""A server of HTTP, with TLS or without, by aiohttp: an event loop in a thread, answers in others.

So many connections are there at once. Where all places are taken, the connection that has kept us
waiting the longest makes room for the next; one whose request is being answered keeps its place,
and where all are, the next is turned away. Each step of a connection has an end: the handshake,
the request from its first byte to its last, the reading of the answer, and the time between two
requests. What cannot be accepted, for want of file descriptors or memory, is tried again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import math
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from aiohttp import HttpVersion10, HttpVersion11, web

from pyvgpu.httpmessages import Answer, Head, refusal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Mapping

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1  # after a connection that could not be accepted
TELL_SECONDS = 1.0  # between two log lines on connections that broke
MOST_FIELDS, LONGEST_LINE = 100, 1 << 16  # of a request's head
NAME = "pyvgpu"  # of the server, as it says in each answer
_BACKLOG = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows."""

    connections: int
    handshake_seconds: float = 5
    request_seconds: float = 10  # from the first byte to the last, and for reading the answer
    idle_seconds: float = 120  # between two requests, and before the first


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """What a server does with requests."""

    # How many bytes of a body are to be read; or what is answered without, by the event loop.
    accept: Callable[[Head], int | Answer]
    # In a thread of its own for each request; what it raises is answered as a fault of ours.
    answer: Callable[[Head, bytes], Answer]
    # Whether the event loop is to answer itself, where that waits for nothing: a thread would have
    # to wait for the interpreter's lock, twice.
    quick: Callable[[Head], bool] = lambda _: False
    # Told of connections that broke, such as those of clients that do not trust us, by a text.
    lost: Callable[[str, str], None] = lambda _address, _reason: None


class Lost:
    """Logs connections that broke; of many within a second one, and how many there were."""

    def __init__(self) -> None:
        self._count, self._told = 0, -math.inf

    def __call__(self, address: str, reason: str) -> None:
        """Take note of one."""
        self._count += 1
        if time.monotonic() < self._told + TELL_SECONDS:
            return
        others = f", and {self._count - 1} more" if self._count > 1 else ""
        self._count, self._told = 0, time.monotonic()
        log.info("lost a connection of %s: %s%s", address, reason, others)


class Server:
    """Listens from the beginning on, and answers from :meth:`serve_forever` on."""

    def __init__(
        self,
        address: tuple[str, int],
        service: Service,
        limits: Limits,
        context: Callable[[], ssl.SSLContext] | None = None,
        clients: Collection[str] = (),
    ) -> None:
        """Listen at *address*, ``::`` for IPv4 as well; OSError where that cannot be.

        *context* is asked for each connection. *clients* are common names, of which a client's
        certificate must have one.
        """
        self.service = service
        self.limits = limits
        self.draining = False  # each answer is the last of its connection
        self._context = context
        self._clients = frozenset(clients)
        self._socket = _listen(*address)
        self._pool = concurrent.futures.ThreadPoolExecutor(
            limits.connections, thread_name_prefix="answer"
        )
        try:
            self._loop = asyncio.new_event_loop()  # now, as long as there are descriptors
        except BaseException:
            self._socket.close()
            raise
        self._ending: asyncio.Event | None = None
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._stopped = False
        self._places: dict[_Place, None] = {}
        self._awaited: dict[_Place, None] = {}  # those that keep us waiting, the longest first

    @property
    def server_address(self) -> tuple[str, int]:
        """Where it listens."""
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
        """End ``serve_forever``, and be back when that has ended."""
        with self._changing:
            self._stopped = True
            ending = self._ending
            if ending is None:
                return
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(ending.set)
        self._ended.wait()

    def server_close(self) -> None:
        """Listen no more."""
        self._socket.close()
        if not self._loop.is_running():
            self._loop.close()
        self._pool.shutdown(wait=False)

    def __enter__(self) -> Server:
        """Give the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self.server_close()

    async def _serve(self) -> None:
        loop = self._loop
        loop.set_exception_handler(lambda _, what: log.debug("%s", what.get("message")))
        with self._changing:
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
            place = _Place(accepted, str(address[0]))
            self._places[place] = self._awaited[place] = None
            place.opening = loop.create_task(self._open(loop, manager, place))

    def _has_place(self) -> bool:
        if len(self._places) < self.limits.connections:
            return True
        longest = next(iter(self._awaited), None)
        if longest is None:
            return False  # all have asked, and are being answered
        self.leave(longest)
        longest.abort()
        return True

    async def _open(
        self, loop: asyncio.AbstractEventLoop, manager: web.Server, place: _Place
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
        """Return why a client is not to be heard; an empty text if it is."""
        if not self._clients:
            return ""
        certificate = transport.get_extra_info("peercert") or {}
        parts = [part for name in certificate.get("subject", ()) for part in name]
        names = {value for key, value in parts if key == "commonName"}
        if names & self._clients:
            return ""
        known = ", ".join(sorted(self._clients))
        return f"the client is {', '.join(names) or 'unnamed'}: must be one of {known}"

    def leave(self, place: _Place) -> None:
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
        # What is not read in time is not sent to its end.
        connection.expect_within(self.limits.request_seconds)
        await said.prepare(request)
        await said.write_eof()
        connection.expect_within(None)
        return said

    async def _answer(
        self, connection: _Connection, request: web.BaseRequest, head: Head
    ) -> Answer:
        if request.version not in (HttpVersion10, HttpVersion11):
            return refusal(400, "the first line must be as in GET /path HTTP/1.1")
        if len(request.headers) > MOST_FIELDS:
            return refusal(400, f"the head must have no more than {MOST_FIELDS} fields")
        wanted = self.service.accept(head)
        if isinstance(wanted, Answer):
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
            return refusal(500, "a fault, see the log")
        finally:
            if connection.place in self._places:
                self._awaited[connection.place] = None


class _Place:
    """A connection's place, from when it was accepted to its end."""

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
    """A connection as aiohttp has it, with an end to our patience."""

    def __init__(
        self,
        server: Server,
        place: _Place,
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
        """Hear a client, or not: its first request may come with the end of the handshake."""
        super().connection_made(transport)
        if stranger := self._ours.stranger(transport):
            self._heard = False
            self._ours.service.lost(self.place.address, stranger)
            self._end()

    def data_received(self, data: bytes) -> None:
        """Take some more of a request, which is to end soon."""
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
        """Answer what is no request."""
        why = message if status == 400 and message else "a fault"
        fields = {"Server": NAME, "Connection": "close"}
        said = web.Response(text=f"{why}\n", status=status, headers=fields)
        said.force_close()
        return said

    def expect_within(self, seconds: float | None) -> None:
        """End the connection unless this is called again within *seconds*; None: no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._asking.call_later(seconds, self._end)

    def write(self, content: bytes) -> None:
        """Send something before the answer."""
        if self.transport is not None:
            self.transport.write(content)

    def _end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


_quiet = logging.getLogger(f"{__name__}.requests")
_quiet.setLevel(logging.CRITICAL)  # anybody could fill the log


def _listen(host: str, port: int) -> socket.socket:
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
