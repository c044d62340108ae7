"""One resource on one socket: the server side of kubelet's device-plugin API, v1beta1.

It only translates. What to count, what to give and whether a container may start, others decide.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from pyvgpu import errors
from pyvgpu.deviceplugin import counting, ids, messages, placing
from pyvgpu.rpc import server, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyvgpu.deviceplugin import starting

log = logging.getLogger(__name__)


class Decider(Protocol):
    """Who decides; what it raises of pyvgpu's errors is shown to the user of the pod."""

    def allocate(self, kind: ids.Kind, given: frozenset[str]) -> messages.Answer:
        """Return what a container gets that is given these ids."""

    def start(self, kind: ids.Kind, held: frozenset[str], done: starting.Done) -> None:
        """Call *done* when the containers that hold these ids may start, or with why not.

        From whichever thread; what is raised is why not, too.
        """

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
        self._server: server.Server | None = None
        self._left = threading.Event()
        self.tell_left: Callable[[], None] = lambda: None
        self.count: counting.Count = lambda *_: None

    @property
    def is_left(self) -> bool:
        """Tell whether who listened since :meth:`expect` does so no more."""
        return self._left.is_set()

    def expect(self) -> None:
        """Begin to wait for somebody who listens."""
        self._left = threading.Event()

    def serves(self) -> bool:
        """Tell whether it accepts connections, at the socket where kubelet looks."""
        return self._server is not None and self._server.serves

    def serve(self) -> None:
        """Serve on a new socket; UnavailableError if there can be none."""
        self.stop()
        self._server = server.listen(self.socket, self._methods())

    def stop(self) -> None:
        """Serve no more."""
        made, self._server = self._server, None
        if made is not None:
            made.stop()

    def _methods(self) -> dict[str, server.Kind]:
        answered = self._answered
        methods: dict[str, server.Kind] = {
            "GetDevicePluginOptions": server.Method(lambda _: messages.OPTIONS),
            "ListAndWatch": server.Streaming(self._listed),
            "GetPreferredAllocation": server.Method(answered(self._prefer)),
            "Allocate": server.Method(answered(self._allocate)),
            "PreStartContainer": server.Later(self._start),
        }
        return {f"/{messages.SERVICE}/{name}": method for name, method in methods.items()}

    def _listed(self, _request: bytes, listener: server.Listener) -> Iterator[bytes]:
        left = self._left
        try:
            if listener.add_callback(self._offer.wake):  # else it has gone already
                yield from self._offer.changes(listener.is_active)
        finally:
            left.set()
            self.tell_left()

    def _prefer(self, request: bytes) -> bytes:
        return messages.chosen(
            self._decider.prefer(self.resource.kind, it) for it in messages.choices(request)
        )

    def _allocate(self, request: bytes) -> bytes:
        kind = self.resource.kind
        with counting.counted(self.count, "allocate"):
            return messages.allocation(
                [self._decider.allocate(kind, it) for it in messages.asked_for(request)]
            )

    def _start(self, request: bytes, reply: server.Reply) -> None:
        begun = time.perf_counter()

        def done(failure: Exception | None) -> None:
            self.count("start", time.perf_counter() - begun, _result(failure))
            reply(messages.NOTHING if failure is None else self._as_call_error(failure))

        try:
            held = messages.about_to_start(request)
            self._decider.start(self.resource.kind, held, done)
        except Exception as exc:
            done(exc)

    def _answered(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Return *answer* with errors as gRPC has them."""

        def call(request: bytes) -> bytes:
            try:
                return answer(request)
            except Exception as exc:
                raise self._as_call_error(exc) from exc

        return call

    def _as_call_error(self, exc: Exception) -> status.CallError:
        """Return what kubelet is told of a failure; the log is told, too."""
        code = status.Code
        if isinstance(exc, ValueError):
            return status.CallError(code.INVALID_ARGUMENT, f"pyvgpu: {exc}")
        if isinstance(exc, errors.PyVgpuError):
            log.warning("refused %s: %s", self.resource.name, exc)
            return status.CallError(code.FAILED_PRECONDITION, f"pyvgpu: {exc}")
        log.error("failed at a call for %s", self.resource.name, exc_info=exc)
        return status.CallError(code.INTERNAL, "pyvgpu: a fault, see the agent's log")


def _result(failure: Exception | None) -> counting.Result:
    if failure is None:
        return counting.Result.DONE
    waits = isinstance(failure, placing.WaitsError)
    return counting.Result.WAITS if waits else counting.Result.REFUSED
