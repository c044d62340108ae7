"""Makes calls: each on a connection of its own, as whoever answers may be another; or over one."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Self

from pyvgpu.rpc import hpack, http2, messages, status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MOST_BYTES = 16 << 20  # of an answer, if nobody says else


def call(
    path: Path, method: str, request: bytes, *, seconds: float, most: int = MOST_BYTES
) -> bytes:
    """Return the answer of whoever listens at *path* to a *method*; CallError if there is none.

    It may have so many bytes as *most*, and take so long.
    """
    with Line(path, seconds=seconds, most=most) as line:
        return line.call(method, request)


class Line:
    """A connection over which one thread calls, one time after the other; to be used with."""

    def __init__(self, path: Path, *, seconds: float, most: int = MOST_BYTES) -> None:
        self._seconds = seconds  # for a call, and to connect
        self._end = time.monotonic() + seconds  # of the first
        ours = socket.socket(socket.AF_UNIX)
        try:
            with _failures(seconds):
                ours.settimeout(seconds)
                ours.connect(str(path))
                self._asking = _Asking(ours, most)
                self._asking.greet(http2.PREFACE)
        except BaseException:
            ours.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.hang_up()

    def call(self, method: str, request: bytes) -> bytes:
        """Return the answer to a method; CallError if there is none: then it is of no more use."""
        end, self._end = self._end or time.monotonic() + self._seconds, 0.0
        with _failures(self._seconds):
            return self._asking.ask(method, request, end)


@contextlib.contextmanager
def _failures(seconds: float) -> Iterator[None]:
    """Turn what goes wrong inside into how a call ends."""
    try:
        yield
    except TimeoutError as exc:
        text = f"no answer within {seconds:g} s"
        raise status.CallError(status.Code.DEADLINE_EXCEEDED, text) from exc
    except (OSError, http2.BrokenError) as exc:
        raise status.CallError(status.Code.UNAVAILABLE, str(exc)) from exc


class _Asking(http2.Connection):
    """The other end of it."""

    def __init__(self, ours: socket.socket, most: int) -> None:
        super().__init__(ours, most, 0)
        self._number = -1  # of the stream that is asked on
        self._headers: dict[bytes, bytes] = {}  # the last of a name counts
        self._content = bytearray()
        self._ended = False

    def hang_up(self) -> None:
        self.close()
        self._input.close()
        self._socket.close()

    def ask(self, method: str, request: bytes, end: float) -> bytes:
        self._number += 2
        self._headers, self._content, self._ended = {}, bytearray(), False
        head = hpack.encode(
            (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", method.encode()),
                (b":authority", b"localhost"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
            )
        )
        self.send_request(self._number, head, messages.framed(request))
        for _ in self.heard():
            if self._ended:
                return self._answer()
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
        raise http2.BrokenError("it hung up without an answer")

    def _answer(self) -> bytes:
        if self._headers.get(b":status") != b"200":
            said = self._headers.get(b":status", b"").decode("ascii", "replace")
            raise status.CallError(status.Code.UNKNOWN, f"HTTP status {said or 'lacking'}")
        code = self._headers.get(b"grpc-status", b"")
        failed = status.parse(code, self._headers.get(b"grpc-message", b""))
        if failed is not None:
            raise failed
        return messages.only(bytes(self._content))

    def heard_headers(self, number: int, headers: Sequence[hpack.Header], ended: bool) -> None:
        if number == self._number:
            self._headers |= dict(headers)
            self._ended |= ended

    def heard_content(self, number: int, content: bytes, ended: bool) -> None:
        if number == self._number:
            self._content += content
            self._ended |= ended
        if len(self._content) > self._most:
            raise http2.BrokenError(f"an answer of more than {self._most} bytes")

    def heard_end(self, number: int, reason: int) -> None:
        if number == self._number:
            raise http2.BrokenError(f"it ended the call, with {reason}")
