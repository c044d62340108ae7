"""One resource on one socket: the server side of kubelet's device-plugin API, v1beta1.

It only translates. What to count, what to give and whether a container may start, others decide.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

import grpc

from pyvgpu import errors, grpcsocket
from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import answers, counting, ids, placing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import NoReturn

    from pyvgpu.deviceplugin import starting

log = logging.getLogger(__name__)

OPTIONS = api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


class Decider(Protocol):
    """Who decides; what it raises of pyvgpu's errors is shown to the user of the pod."""

    def allocate(self, kind: ids.Kind, given: frozenset[str]) -> answers.Answer:
        """Return what a container gets that is given these ids."""

    def start(self, kind: ids.Kind, held: frozenset[str], done: starting.Done) -> None:
        """Call *done* when the containers that hold these ids may start, or with why not.

        From whichever thread; what is raised is why not, too.
        """

    def prefer(self, kind: ids.Kind, asked: answers.Choice) -> tuple[str, ...]:
        """Return which of the ids that are free kubelet shall take."""


class Offer:
    """What kubelet shall count of a resource; those who listen are told of changes alone."""

    def __init__(self, resource: ids.Resource, count: int = 0) -> None:
        self.resource = resource
        self._everything = resource.ids(count)
        self._changed = threading.Condition()
        self._unhealthy = frozenset[str]()
        self._version = 1
        self._content: api.ListAndWatchResponse | None = None

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

    def changes(self, goes_on: Callable[[], bool]) -> Iterator[api.ListAndWatchResponse]:
        """Yield the list as it is, and again whenever it is another, while it *goes_on*."""
        seen = 0
        while True:
            with self._changed:
                while goes_on() and seen == self._version:
                    self._changed.wait()
                if not goes_on():
                    return
                if self._content is None:
                    self._content = _listing(self._everything, self._unhealthy)
                seen, content = self._version, self._content
            yield content


class Plugin:
    """The server of a resource, which can be ended and begun again."""

    def __init__(self, folder: Path, offer: Offer, decider: Decider) -> None:
        resource = self.resource = offer.resource
        self.socket = folder / f"pyvgpu-{resource.kind.value}.sock"
        self._offer = offer
        self._decider = decider
        self._server: grpcsocket.Server | None = None
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

    def is_in_place(self) -> bool:
        """Tell whether there is a socket of it where kubelet looks."""
        return self._server is not None and self._server.is_in_place()

    def serves(self) -> bool:
        """Tell whether it answers there, too: a call of our own."""
        return self._server is not None and self._server.serves()

    def serve(self) -> None:
        """Serve on a new socket; UnavailableError if there can be none."""
        self.stop()
        calls = _Calls(self.resource, self._decider, self._listed, lambda *it: self.count(*it))
        self._server = grpcsocket.listen(
            self.socket, lambda made: api_grpc.add_DevicePluginServicer_to_server(calls, made)
        )

    def stop(self) -> None:
        """Serve no more."""
        made, self._server = self._server, None
        if made is not None:
            made.stop()

    def _listed(self, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        left = self._left
        try:
            if context.add_callback(self._offer.wake):  # else it has gone already
                yield from self._offer.changes(context.is_active)
        finally:
            left.set()
            self.tell_left()


class _Calls(api_grpc.DevicePluginServicer):
    """Kubelet's calls, translated for a decider."""

    def __init__(
        self,
        resource: ids.Resource,
        decider: Decider,
        listed: Callable[[grpc.ServicerContext], Iterator[api.ListAndWatchResponse]],
        count: counting.Count,
    ) -> None:
        self._resource = resource
        self._decider = decider
        self._listed = listed
        self._count = count

    def GetDevicePluginOptions(  # noqa: N802 - these are the API's names
        self,
        request: api.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> api.DevicePluginOptions:
        return OPTIONS

    def ListAndWatch(  # noqa: N802
        self,
        request: api.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,
    ) -> Iterator[api.ListAndWatchResponse]:
        return self._listed(context)

    def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        asked = [
            answers.Choice(
                tuple(it.available_device_ids),
                tuple(it.must_include_device_ids),
                it.allocation_size,
            )
            for it in request.container_requests
        ]
        try:
            found = [self._decider.prefer(self._resource.kind, it) for it in asked]
        except Exception as exc:
            self._refuse(context, exc)
        answer = api.PreferredAllocationResponse()
        for it in found:
            answer.container_responses.add(device_ids=it)
        return answer

    def Allocate(  # noqa: N802
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        kind = self._resource.kind
        try:
            with counting.counted(self._count, "allocate"):
                found = [
                    self._decider.allocate(kind, frozenset(it.device_ids))
                    for it in request.container_requests
                ]
        except Exception as exc:
            self._refuse(context, exc)
        return api.AllocateResponse(container_responses=map(as_message, found))

    def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        begun = time.perf_counter()
        over = threading.Event()  # it is decided, or kubelet waits no more
        failures: list[Exception | None] = []

        def done(failure: Exception | None) -> None:
            self._count("start", time.perf_counter() - begun, _result(failure))
            failures.append(failure)
            over.set()

        if context.add_callback(over.set):
            try:
                self._decider.start(self._resource.kind, frozenset(request.device_ids), done)
            except Exception as exc:
                done(exc)
            over.wait()
        failure = failures[0] if failures else None
        if failure is not None:
            self._refuse(context, failure)
        return api.PreStartContainerResponse()

    def _refuse(self, context: grpc.ServicerContext, exc: Exception) -> NoReturn:
        """Tell kubelet of a failure; the log is told, too."""
        code, text = grpc.StatusCode.INTERNAL, "a fault, see the agent's log"
        if isinstance(exc, ValueError):
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(exc)
        elif isinstance(exc, errors.PyVgpuError):
            log.warning("refused %s: %s", self._resource.name, exc)
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(exc)
        else:
            log.error("failed at a call for %s", self._resource.name, exc_info=exc)
        context.abort(code, f"pyvgpu: {text}")


def as_message(answer: answers.Answer) -> api.ContainerAllocateResponse:
    """Return what kubelet keeps of a container's *answer*."""
    return api.ContainerAllocateResponse(
        envs=answer.variables,
        mounts=[
            api.Mount(container_path=it.inside, host_path=it.outside, read_only=it.read_only)
            for it in answer.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=inside, host_path=outside, permissions="rw")
            for inside, outside in answer.nodes
        ],
        annotations=answer.annotations,
        cdi_devices=[api.CDIDevice(name=it) for it in answer.cdi_devices],
    )


def _listing(everything: tuple[str, ...], unhealthy: frozenset[str]) -> api.ListAndWatchResponse:
    answer = api.ListAndWatchResponse()
    for it in everything:
        answer.devices.add(id=it, health=_UNHEALTHY if it in unhealthy else _HEALTHY)
    return answer


def _result(failure: Exception | None) -> counting.Result:
    if failure is None:
        return counting.Result.DONE
    waits = isinstance(failure, placing.WaitsError)
    return counting.Result.WAITS if waits else counting.Result.REFUSED
