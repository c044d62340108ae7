"""One resource on one socket: the server side of kubelet's device-plugin API, v1beta1.

It only translates. What to count, what to give and whether a container may start, others decide.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from pyvgpu import errors
from pyvgpu.deviceplugin import ids, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

_THREADS = 64  # made when needed: one for each call that waits, and one for who listens
_RECEIVE_BYTES = 16 << 20  # a list of all ids of a node comes with GetPreferredAllocation


class Decider(Protocol):
    """Who decides; what it raises of pyvgpu's errors is shown to the user of the pod."""

    def allocate(self, kind: ids.Kind, given: frozenset[str]) -> messages.Answer:
        """Return what a container gets that is given these ids."""

    def start(self, kind: ids.Kind, held: frozenset[str]) -> None:
        """Be back when the containers that hold these ids may start."""

    def prefer(self, kind: ids.Kind, asked: messages.Choice) -> tuple[str, ...]:
        """Return which of the ids that are free kubelet shall take."""


class Offer:
    """What kubelet shall count of a resource; those who listen are told of changes alone."""

    def __init__(self, resource: ids.Resource, count: int = 0) -> None:
        self.resource = resource
        self._everything = resource.ids(count)
        self._changed = threading.Condition()
        self._unhealthy = frozenset[str]()
        self._version = 1
        self._content: bytes | None = None

    @property
    def everything(self) -> tuple[str, ...]:
        """All ids, healthy or not."""
        return self._everything

    @property
    def unhealthy(self) -> frozenset[str]:
        """Those that nobody shall count on."""
        return self._unhealthy

    def set(self, count: int, unhealthy: frozenset[str] = frozenset()) -> None:
        """Let there be *count* ids from now on, and count on all but those *unhealthy*."""
        with self._changed:
            if (len(self._everything), self._unhealthy) == (count, unhealthy):
                return
            if len(self._everything) != count:
                self._everything = self.resource.ids(count)
            self._unhealthy = unhealthy
            self._version += 1
            self._content = None
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who listen look whether they still should."""
        with self._changed:
            self._changed.notify_all()

    def changes(self, goes_on: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the list as it is, and again whenever it is another, while it *goes_on*."""
        seen = 0
        while True:
            with self._changed:
                while goes_on() and seen == self._version:
                    self._changed.wait()
                if not goes_on():
                    return
                if self._content is None:
                    self._content = messages.listing(self._everything, self._unhealthy)
                seen, content = self._version, self._content
            yield content


class Plugin:
    """The server of a resource, which can be ended and begun again."""

    def __init__(self, folder: Path, offer: Offer, decider: Decider) -> None:
        resource = self.resource = offer.resource
        self.socket = folder / f"pyvgpu-{resource.kind.value}.sock"
        self._offer = offer
        self._decider = decider
        self._server: grpc.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._left = threading.Event()
        self.tell_left: Callable[[], None] = lambda: None
        self.count: Callable[[str, float, bool], None] = lambda *_: None  # see _counted

    @property
    def is_left(self) -> bool:
        """Tell whether who listened since :meth:`expect` does so no more."""
        return self._left.is_set()

    def expect(self) -> None:
        """Begin to wait for somebody who listens."""
        self._left = threading.Event()

    def serves(self) -> bool:
        """Tell whether it does, and its socket is still where kubelet looks."""
        return self._server is not None and self._inode == _inode(self.socket)

    def serve(self) -> None:
        """Serve on a new socket; UnavailableError if there can be none."""
        self.stop()  # whose library removes the socket of that name
        server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(
                _THREADS, thread_name_prefix=self.resource.kind.value
            ),
            options=[("grpc.max_receive_message_length", _RECEIVE_BYTES)],
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        with contextlib.suppress(OSError):
            self.socket.unlink()
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as exc:
            raise errors.UnavailableError(f"{self.socket}: cannot listen there") from exc
        server.start()
        self._server, self._inode = server, _inode(self.socket)

    def stop(self) -> None:
        """Serve no more."""
        server, self._server = self._server, None
        if server is not None:
            stopped = server.stop(None)
            self._offer.wake()
            stopped.wait()

    def _handlers(self) -> Any:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            messages.SERVICE,
            {
                "GetDevicePluginOptions": unary(self._answered(lambda _: messages.OPTIONS)),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._listed),
                "GetPreferredAllocation": unary(self._answered(self._prefer)),
                "Allocate": unary(self._answered(self._counted("allocate", self._allocate))),
                "PreStartContainer": unary(self._answered(self._counted("start", self._start))),
            },
        )

    def _listed(self, _request: bytes, context: Any) -> Iterator[bytes]:
        if not context.add_callback(self._offer.wake):
            return  # it has gone already
        left = self._left
        try:
            yield from self._offer.changes(context.is_active)
        finally:
            left.set()
            self.tell_left()

    def _prefer(self, request: bytes) -> bytes:
        return messages.chosen(
            self._decider.prefer(self.resource.kind, it) for it in messages.choices(request)
        )

    def _allocate(self, request: bytes) -> bytes:
        kind = self.resource.kind
        return messages.allocation(
            [self._decider.allocate(kind, it) for it in messages.asked_for(request)]
        )

    def _start(self, request: bytes) -> bytes:
        self._decider.start(self.resource.kind, messages.about_to_start(request))
        return messages.NOTHING

    def _counted(self, name: str, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Return *answer*, of which the name, the seconds and the success are counted."""

        def call(request: bytes) -> bytes:
            begun, done = time.perf_counter(), False
            try:
                content = answer(request)
                done = True
                return content
            finally:
                self.count(name, time.perf_counter() - begun, done)

        return call

    def _answered(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes, Any], bytes]:
        """Return *answer* with errors as gRPC has them."""

        def call(request: bytes, context: Any) -> bytes:
            try:
                return answer(request)
            except ValueError as exc:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"pyvgpu: {exc}")
            except errors.PyVgpuError as exc:
                log.warning("refused %s: %s", self.resource.name, exc)
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"pyvgpu: {exc}")
            except Exception:
                log.exception("failed at a call for %s", self.resource.name)
                context.abort(grpc.StatusCode.INTERNAL, "pyvgpu: a fault, see the agent's log")
            raise AssertionError  # abort raises

        return call


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
