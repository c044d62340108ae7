"""One end of an HTTP/2 connection, as gRPC needs it: RFC 9113.

It reads frames from whichever thread runs it, and sends from any. What the other end may not have
yet, for the windows that it keeps open, waits here and goes when it opens them. Whoever inherits
says what comes of what is heard.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import struct
import threading
from typing import TYPE_CHECKING

from pyvgpu.rpc import hpack

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # what whoever called says first

REFUSED, CANCELLED = 7, 8  # why a stream is reset

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _AWAY, _WINDOW, _MORE = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITIZED = 1, 1, 4, 8, 32
_MOST_STREAMS, _INITIAL_WINDOW, _HEADERS_BYTES = 3, 4, 6  # settings

_FRAME = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_FRAME_BYTES = 16384  # of a frame, which every end takes
_WINDOW_BYTES = 65535  # until the other end says another
_LARGEST = (1 << 31) - 1


class BrokenError(Exception):
    """The other end does not speak HTTP/2, or not well."""


@dataclasses.dataclass(slots=True)
class _Outgoing:
    """What is still to be sent on a stream."""

    window: int
    content: bytes = b""
    last: bytes | None = None  # the headers that end it


class Connection(abc.ABC):
    """One end; a message that comes may have so many bytes as *most*."""

    def __init__(self, ours: socket.socket, most: int, streams: int) -> None:
        self._socket = ours
        self._most = most
        self._streams = streams  # that the other end may have open
        self._input = ours.makefile("rb")
        self._decoder = hpack.Decoder()
        self._block: tuple[int, int, bytearray] | None = None  # headers that go on
        self._unsaid = 0  # bytes that came, for which the window was not opened again
        self._sending = threading.Condition()
        self._outgoing: dict[int, _Outgoing] = {}
        self._window = _WINDOW_BYTES  # of the whole connection
        self._first_window = _WINDOW_BYTES  # of a stream
        self._closed = False

    # --- what comes of it, for whoever inherits ------------------------------------------------

    @abc.abstractmethod
    def heard_headers(self, number: int, headers: Sequence[hpack.Header], ended: bool) -> None:
        """Take headers of a stream; *ended*: nothing more comes of it."""

    @abc.abstractmethod
    def heard_content(self, number: int, content: bytes, ended: bool) -> None:
        """Take a part of what comes on a stream."""

    @abc.abstractmethod
    def heard_end(self, number: int, reason: int) -> None:
        """Take note that the other end wants no more of a stream, by a code of HTTP/2."""

    # --- sending --------------------------------------------------------------------------------

    def greet(self, first: bytes = b"") -> None:
        """Say what is agreed, after *first*."""
        settings = {
            _MOST_STREAMS: self._streams,
            _INITIAL_WINDOW: self._most + _FRAME_BYTES,  # so that what is too much is seen
            _HEADERS_BYTES: hpack.MOST_BYTES,
        }
        said = b"".join(_SETTING.pack(*it) for it in settings.items())
        opened = _NUMBER.pack(self._most + _FRAME_BYTES)
        with self._sending:
            self._put(first + _frame(_SETTINGS, 0, 0, said) + _frame(_WINDOW, 0, 0, opened))

    def open(self, number: int) -> None:
        """Be ready to send on a stream."""
        with self._sending:
            self._outgoing[number] = _Outgoing(self._first_window)

    def send(
        self, number: int, head: bytes = b"", content: bytes = b"", last: bytes | None = None
    ) -> None:
        """Send headers, a message, and headers that end the stream; each may be left out.

        Nothing is sent of a stream that is over. What is too much for the window goes later.
        """
        with self._sending:
            stream = self._outgoing.get(number)
            if stream is None:
                return
            stream.content += content
            stream.last = last
            begin = _frame(_HEADERS, _END_HEADERS, number, head) if head else b""
            self._put(begin + self._due(number, stream))

    def send_request(self, number: int, head: bytes, content: bytes) -> None:
        """Open a stream with all that is ever said on it: what every window lets through."""
        if len(content) > _WINDOW_BYTES:
            raise ValueError(
                f"a request of {len(content)} bytes: must have {_WINDOW_BYTES} or less"
            )
        parts = [content[it : it + _FRAME_BYTES] for it in range(0, len(content), _FRAME_BYTES)]
        frames = [_frame(_DATA, 0, number, it) for it in parts[:-1]]
        frames.append(_frame(_DATA, _END_STREAM, number, parts[-1]))
        with self._sending:
            self._put(_frame(_HEADERS, _END_HEADERS, number, head) + b"".join(frames))

    def until_sent(self, number: int) -> None:
        """Be back when all that was sent on a stream has gone, or the stream."""
        with self._sending:
            self._sending.wait_for(
                lambda: number not in self._outgoing or not self._outgoing[number].content
            )

    def reset(self, number: int, reason: int) -> None:
        """End a stream without a word."""
        with self._sending:
            self._outgoing.pop(number, None)
            self._put(_frame(_RESET, 0, number, _NUMBER.pack(reason)))

    def close(self) -> None:
        """End the connection; whoever reads it is back then."""
        with self._sending:
            self._closed = True
            self._outgoing.clear()
            self._sending.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(2)

    def _put(self, frames: bytes) -> None:
        if frames and not self._closed:
            try:
                self._socket.sendall(frames)
            except OSError:  # whoever reads finds it ended
                self._closed = True

    def _due(self, number: int, stream: _Outgoing) -> bytes:
        """Return the frames that may go now."""
        frames = []
        while stream.content:
            size = min(len(stream.content), stream.window, self._window, _FRAME_BYTES)
            if size <= 0:
                break
            frames.append(_frame(_DATA, 0, number, stream.content[:size]))
            stream.content = stream.content[size:]
            stream.window -= size
            self._window -= size
        if stream.last is not None and not stream.content:
            frames.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, number, stream.last))
            del self._outgoing[number]
        return b"".join(frames)

    def _flush(self) -> None:
        waiting = [it for it in self._outgoing.items() if it[1].content]
        self._put(b"".join(self._due(*it) for it in waiting))
        self._sending.notify_all()

    # --- hearing --------------------------------------------------------------------------------

    def heard(self) -> Iterator[None]:
        """Hear a frame at each step, until the other end hangs up.

        BrokenError for what is no HTTP/2; OSError from the socket.
        """
        while (found := self._next()) is not None:
            self._take(*found)
            yield

    def greeted(self) -> None:
        """Read what whoever called says first; BrokenError if that is anything else."""
        if self._input.read(len(PREFACE)) != PREFACE:
            raise BrokenError("it does not begin as HTTP/2 does")

    def _next(self) -> tuple[int, int, int, bytes] | None:
        head = self._input.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None
        high, low, kind, flags, number = _FRAME.unpack(head)
        size = high << 8 | low
        if size > _FRAME_BYTES:
            raise BrokenError(f"a frame of {size} bytes")
        content = self._input.read(size)
        if len(content) < size:
            return None
        return kind, flags, number & _LARGEST, content

    def _take(self, kind: int, flags: int, number: int, content: bytes) -> None:
        if (self._block is None) == (kind == _MORE):
            raise BrokenError("headers that go on come alone, and nothing in between")
        try:
            if kind == _DATA:
                self._take_data(flags, number, content)
            elif kind == _HEADERS:
                self._take_headers(flags, number, content)
            elif kind == _MORE:
                self._take_more(flags, number, content)
            elif kind == _RESET:
                self._take_reset(number, content)
            elif kind == _SETTINGS:
                self._take_settings(flags, content)
            elif kind == _PING:
                self._take_ping(flags, content)
            elif kind == _WINDOW:
                self._take_window(number, content)
            elif kind == _PUSH:
                raise BrokenError("nothing was to be pushed")
        except (struct.error, IndexError) as exc:
            raise BrokenError("a frame is not whole") from exc

    def _take_data(self, flags: int, number: int, content: bytes) -> None:
        self._unsaid += len(content)
        if self._unsaid >= self._most // 2:
            with self._sending:
                self._put(_frame(_WINDOW, 0, 0, _NUMBER.pack(self._unsaid)))
            self._unsaid = 0
        self.heard_content(number, _unpadded(flags, content), bool(flags & _END_STREAM))

    def _take_headers(self, flags: int, number: int, content: bytes) -> None:
        block = _unpadded(flags, content)
        if flags & _PRIORITIZED:
            block = block[5:]
        self._block = number, flags, bytearray(block)
        if flags & _END_HEADERS:
            self._end_block()

    def _take_more(self, flags: int, number: int, content: bytes) -> None:
        begun, _, block = self._block or (0, 0, bytearray())
        block += content
        if number != begun or len(block) > hpack.MOST_BYTES:
            raise BrokenError("headers without an end")
        if flags & _END_HEADERS:
            self._end_block()

    def _end_block(self) -> None:
        assert self._block is not None  # noqa: S101 - whoever calls has just seen it
        number, flags, block = self._block
        self._block = None
        try:
            headers = self._decoder.decode(bytes(block))
        except ValueError as exc:
            raise BrokenError(str(exc)) from exc
        self.heard_headers(number, headers, bool(flags & _END_STREAM))

    def _take_reset(self, number: int, content: bytes) -> None:
        (reason,) = _NUMBER.unpack(content)
        with self._sending:
            self._outgoing.pop(number, None)
            self._sending.notify_all()
        self.heard_end(number, reason)

    def _take_settings(self, flags: int, content: bytes) -> None:
        if flags & _ACK:
            return
        with self._sending:
            for name, value in _SETTING.iter_unpack(content):
                if name == _INITIAL_WINDOW:
                    for stream in self._outgoing.values():
                        stream.window += value - self._first_window
                    self._first_window = value
            self._put(_frame(_SETTINGS, _ACK, 0))
            self._flush()

    def _take_ping(self, flags: int, content: bytes) -> None:
        if not flags & _ACK:
            with self._sending:
                self._put(_frame(_PING, _ACK, 0, content))

    def _take_window(self, number: int, content: bytes) -> None:
        (more,) = _NUMBER.unpack(content)
        with self._sending:
            if not number:
                self._window += more & _LARGEST
            elif number in self._outgoing:
                self._outgoing[number].window += more & _LARGEST
            self._flush()


def _frame(kind: int, flags: int, number: int, content: bytes = b"") -> bytes:
    size = len(content)
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, number) + content


def _unpadded(flags: int, content: bytes) -> bytes:
    if not flags & _PADDED:
        return content
    padding = content[0]
    if padding >= len(content):
        raise BrokenError("a frame of nothing but padding")
    return content[1 : len(content) - padding]
