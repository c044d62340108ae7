"""Answers calls at a socket of this node.

What is answered at once is answered by the thread that reads the connection; what may wait has a
thread of its own meanwhile.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu import accepting, errors
from pyvgpu.rpc import hpack, http2, messages, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

RECEIVE_BYTES = 16 << 20  # of a message that comes, and more is not taken

_THREADS = 64  # made when needed, one for each call that waits
_BROKEN = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})  # of the listening socket
_STREAMS = 256  # that one connection may have open

_HEAD = b"\x88" + hpack.encode([(b"content-type", b"application/grpc")])  # :status 200
_WELL = hpack.encode([(b"grpc-status", b"0")])


# To be called once, from any thread, with the answer to a call or with what went wrong.
Reply: TypeAlias = "Callable[[bytes | Exception], None]"


class Listener:
    """Whoever listens to a stream of answers."""

    def __init__(self) -> None:
        self._ended = False
        self._noting = threading.Lock()
        self._told: list[Callable[[], None]] = []

    def is_active(self) -> bool:
        """Tell whether anybody listens still."""
        return not self._ended

    def add_callback(self, tell: Callable[[], None]) -> bool:
        """Have *tell* called when nobody listens any more; false if that is so now."""
        with self._noting:
            if not self._ended:
                self._told.append(tell)
            return not self._ended

    def end(self) -> None:
        """Take note that nobody listens any more."""
        with self._noting:
            self._ended = True
            told, self._told = self._told, []
        for tell in told:
            tell()


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """How one method is answered; CallError is what goes wrong."""

    answer: Callable[[bytes], bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """How one is answered that may wait for something that takes longer than a disk."""

    answer: Callable[[bytes], bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Later:
    """How one is answered by whoever has the answer: who is asked does not wait for it."""

    ask: Callable[[bytes, Reply], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Streaming:
    """How one is answered that never ends."""

    answers: Callable[[bytes, Listener], Iterator[bytes]]


Kind: TypeAlias = Method | Waiting | Later | Streaming


class Server:
    """Serves *methods*, which have names such as /v1beta1.DevicePlugin/Allocate, at a socket."""

    def __init__(self, path: Path, methods: Mapping[str, Kind]) -> None:
        self._path = path
        self._methods = methods
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix=path.stem)
        self._changing = threading.Lock()
        self._connections: set[_Served] = set()
        self._stopped = False
        self._failures = accepting.Failures(str(path))
        self._listening = socket.socket(socket.AF_UNIX)
        try:
            self._listening.bind(str(path))
            self._listening.listen(_STREAMS)
        except OSError:
            self._listening.close()
            raise
        self._inode = _inode(path)
        self._thread = threading.Thread(target=self._accept, name=path.stem, daemon=True)

    @property
    def serves(self) -> bool:
        """Whether it accepts connections, and its socket is still where clients look."""
        return self._thread.is_alive() and self._is_in_place()

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Hang up on everybody, and answer no more; what is being done meanwhile is done."""
        with self._changing:
            self._stopped = True
            connections = list(self._connections)
        self._failures.stop()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for each in connections:
            each.close()
        self._thread.join()
        self._listening.close()
        if self._is_in_place():
            self._path.unlink(missing_ok=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_in_place(self) -> bool:
        return self._inode is not None and _inode(self._path) == self._inode

    def _accept(self) -> None:
        while True:
            try:
                theirs, _ = self._listening.accept()
                self._begin(theirs)
            except (OSError, RuntimeError) as exc:  # RuntimeError: no thread can be started
                if self._stopped:
                    return
                if isinstance(exc, OSError) and exc.errno in _BROKEN:
                    log.error("stopped accepting connections at %s: %s", self._path, exc)
                    return  # `serves` is false from now on
                self._failures.pause(exc)
            else:
                self._failures.passed()

    def _begin(self, theirs: socket.socket) -> None:
        """Serve a connection in a thread of its own."""
        made = _Served(theirs, self._methods, self._pool)
        with self._changing:
            if self._stopped:
                theirs.close()
                return
            self._connections.add(made)
        name = threading.current_thread().name
        try:
            threading.Thread(target=self._serve, args=(made,), name=name, daemon=True).start()
        except RuntimeError:
            with self._changing:
                self._connections.discard(made)
            made.close()
            theirs.close()
            raise

    def _serve(self, one: _Served) -> None:
        try:
            one.run()
        finally:
            with self._changing:
                self._connections.discard(one)


def listen(path: Path, methods: Mapping[str, Kind], *, folder_mode: int | None = None) -> Server:
    """Return a server that answers already, in the place of whatever was at *path*.

    Folders that are missing are made with *folder_mode*, if it is given. UnavailableError if there
    can be no server.
    """
    try:
        if folder_mode is not None:
            path.parent.mkdir(folder_mode, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        made = Server(path, methods)
    except OSError as exc:
        raise errors.UnavailableError(
            f"{path}: cannot listen there: {exc.strerror or exc}"
        ) from exc
    made.start()
    return made


@dataclasses.dataclass(slots=True)
class _Call:
    """A call whose request is being heard."""

    method: str
    request: bytearray = dataclasses.field(default_factory=bytearray)


class _Served(http2.Connection):
    """A connection of somebody who calls."""

    def __init__(
        self,
        theirs: socket.socket,
        methods: Mapping[str, Kind],
        pool: concurrent.futures.Executor,
    ) -> None:
        super().__init__(theirs, RECEIVE_BYTES, _STREAMS)
        self._methods = methods
        self._pool = pool
        self._calls: dict[int, _Call] = {}
        self._listeners: dict[int, Listener] = {}
        self._doing: set[int] = set()  # calls that are being answered, wanted still or not
        self._last = 0

    def run(self) -> None:
        """Answer until the other end hangs up."""
        try:
            self.greet()
            self.greeted()
            for _ in self.heard():
                pass
        except (OSError, http2.BrokenError) as exc:
            log.debug("hung up on who called: %s", exc)
        finally:
            self.close()
            for listener in list(self._listeners.values()):
                listener.end()
            with contextlib.suppress(OSError):
                self._input.close()
            self._socket.close()

    def heard_headers(self, number: int, headers: Sequence[hpack.Header], ended: bool) -> None:
        if number in self._calls:  # trailers
            self._heard_all(number, ended)
            return
        if not number & 1 or number <= self._last:
            raise http2.BrokenError(f"stream {number} cannot begin")
        self._last = number
        if len(self._calls) + len(self._doing) >= _STREAMS:
            self.reset(number, http2.REFUSED)
            return
        method = dict(headers).get(b":path", b"").decode("ascii", "replace")
        self._calls[number] = _Call(method)
        self.open(number)
        self._heard_all(number, ended)

    def heard_content(self, number: int, content: bytes, ended: bool) -> None:
        call = self._calls.get(number)
        if call is None:
            return  # it was reset
        call.request += content
        if len(call.request) > self._most:
            del self._calls[number]
            text = f"a message of more than {self._most} bytes"
            self._fail(number, status.CallError(status.Code.RESOURCE_EXHAUSTED, text))
            return
        self._heard_all(number, ended)

    def heard_end(self, number: int, reason: int) -> None:  # noqa: ARG002
        self._calls.pop(number, None)
        listener = self._listeners.get(number)
        if listener is not None:
            listener.end()

    def _heard_all(self, number: int, ended: bool) -> None:
        if not ended:
            return
        call = self._calls.pop(number)
        method = self._methods.get(call.method)
        try:
            request = messages.only(bytes(call.request))
        except status.CallError as exc:
            self._fail(number, exc)
            return
        if method is None:
            text = f"there is no {call.method}"
            self._fail(number, status.CallError(status.Code.UNIMPLEMENTED, text))
            return
        self._doing.add(number)
        if isinstance(method, Streaming):
            listener = self._listeners[number] = Listener()
            args = (number, method, request, listener)
            name = threading.current_thread().name
            threading.Thread(target=self._stream, args=args, name=name, daemon=True).start()
        elif isinstance(method, Later):
            reply = functools.partial(self._reply, number)
            try:
                method.ask(request, reply)
            except Exception as exc:
                reply(exc)
        elif isinstance(method, Waiting):
            with contextlib.suppress(RuntimeError):  # it serves no more
                self._pool.submit(self._answer, number, method.answer, request)
        else:
            self._answer(number, method.answer, request)

    def _answer(self, number: int, answer: Callable[[bytes], bytes], request: bytes) -> None:
        said: bytes | Exception
        try:
            said = answer(request)
        except Exception as exc:
            said = exc
        self._reply(number, said)

    def _reply(self, number: int, said: bytes | Exception) -> None:
        if isinstance(said, Exception):
            self._fail(number, said)
        else:
            self.send(number, _HEAD, messages.framed(said), _WELL)
        self._doing.discard(number)

    def _stream(self, number: int, method: Streaming, request: bytes, listener: Listener) -> None:
        head = _HEAD  # which comes first, and once
        try:
            for message in method.answers(request, listener):
                self.send(number, head, messages.framed(message))
                head = b""
                self.until_sent(number)
        except Exception as exc:
            self._fail(number, exc, head)
        else:
            self.send(number, b"", b"", head + _WELL)
        del self._listeners[number]
        self._doing.discard(number)

    def _fail(self, number: int, exc: Exception, head: bytes = _HEAD) -> None:
        """Tell who called what went wrong; of a fault that nobody foresaw, the log."""
        if not isinstance(exc, status.CallError):
            log.error("failed at a call", exc_info=exc)
            exc = status.CallError(status.Code.INTERNAL, "a fault, see the log")
        said = (b"grpc-status", b"%d" % exc.code), (b"grpc-message", status.quoted(exc.details))
        self.send(number, b"", b"", head + hpack.encode(said))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
