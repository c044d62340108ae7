"""Connections to one HTTP server, of which those for what may be said twice are kept.

To make one, with TLS, takes ten times as long as to ask, on both ends. What changes anything has a
connection of its own, unless it is the same the second time: of one that ends in the middle nobody
knows what was done.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

AT_ONCE = 8  # questions; others wait for their turn
KEPT_SECONDS = 30.0  # that a connection is of use: what lies between may forget it


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What is sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None = None
    again: bool = False  # it is the same if it is done twice

    @property
    def asks(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"

    @property
    def may_be_repeated(self) -> bool:
        """Whether it may be said twice."""
        return self.asks or self.again


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """A connection that may be used again."""

    connection: http.client.HTTPConnection
    used: float  # when last, seconds of a clock that never goes back


class Connections:
    """Those to one server; may be used by several threads."""

    def __init__(self, host: str, context: ssl.SSLContext | None, seconds: float) -> None:
        self._host = host
        self._context = context  # None: without TLS
        self._seconds = seconds  # for each step
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._kept: collections.deque[_Kept] = collections.deque()  # the last used comes last

    def close(self) -> None:
        """Keep none any more."""
        with contextlib.suppress(IndexError):
            while True:
                self._kept.pop().connection.close()

    __del__ = close  # with the last who could use them

    def send(self, request: Request) -> tuple[int, bytes]:
        """Return the status and what is answered; OSError or HTTPException if nothing is."""
        if not request.may_be_repeated:
            return self._send(self._new(), request)
        with self._turns if request.asks else contextlib.nullcontext():
            known = self._take()
            if known is not None:
                with contextlib.suppress(ConnectionError, http.client.BadStatusLine):
                    return self._send(known, request)  # else it was hung up on meanwhile
            return self._send(self._new(), request)

    def _new(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, timeout=self._seconds)
        return http.client.HTTPSConnection(
            self._host, timeout=self._seconds, context=self._context
        )

    def _take(self) -> http.client.HTTPConnection | None:
        """Return a connection that was used a moment ago, and close those that were not."""
        oldest = time.monotonic() - KEPT_SECONDS
        with contextlib.suppress(IndexError):  # there is none any more
            while self._kept[0].used < oldest:
                self._kept.popleft().connection.close()
            return self._kept.pop().connection
        return None

    def _send(self, connection: http.client.HTTPConnection, request: Request) -> tuple[int, bytes]:
        try:
            connection.request(
                request.method, request.path, request.content, dict(request.headers)
            )
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        if request.may_be_repeated and not answer.will_close:
            self._kept.append(_Kept(connection, time.monotonic()))
        else:
            connection.close()
        return answer.status, text
