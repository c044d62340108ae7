"""gRPC server of kubelet's device-plugin API, v1beta1: one resource on one socket.

It only translates. A decider chooses what to advertise, to allocate and to start.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

import grpc

from pyvgpu import errors
from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.deviceplugin.grants import placement
from pyvgpu.deviceplugin.kubelet import call_timing, device_ids, offers, plugin_messages
from pyvgpu.deviceplugin.subscribers import Subscribers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import NoReturn

    from pyvgpu.deviceplugin.grants import prestart

log = logging.getLogger(__name__)

OPTIONS = api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class CallDecider(Protocol):
    """Decides kubelet's calls; users of the pod see the text of any PyVgpuError it raises."""

    def allocate(
        self, kind: device_ids.ResourceKind, given: frozenset[str]
    ) -> plugin_messages.AllocateResponse:
        """Return the response for a container that is allocated these ids."""

    def start(
        self, kind: device_ids.ResourceKind, held: frozenset[str], done: prestart.Done
    ) -> None:
        """Call *done* when the containers that hold these ids may start, or with the failure.

        *done* may be called from any thread; an exception counts as the failure, too.
        """

    def prefer(
        self, kind: device_ids.ResourceKind, asked: plugin_messages.PreferredRequest
    ) -> tuple[str, ...]:
        """Return the free ids that kubelet should take."""


class Plugin:
    """The gRPC server of a resource, which can be restarted."""

    def __init__(
        self,
        folder: Path,
        offer: offers.Offer,
        decider: CallDecider,
        count: call_timing.Count = lambda *_: None,
    ) -> None:
        resource = self.resource = offer.resource
        self.socket = folder / f"pyvgpu-{resource.kind.value}.sock"
        self._offer = offer
        self._decider = decider
        self._server: grpc_socket.GrpcServer | None = None
        self._left = threading.Event()
        self._count = count
        self.left: Subscribers[[]] = Subscribers()  # called when a ListAndWatch stream ends

    @property
    def is_left(self) -> bool:
        """Whether kubelet's ListAndWatch stream since :meth:`expect` has ended."""
        return self._left.is_set()

    def expect(self) -> None:
        """Expect a new ListAndWatch stream."""
        self._left = threading.Event()

    def is_in_place(self) -> bool:
        """Return whether its socket is in kubelet's folder."""
        return self._server is not None and self._server.is_in_place()

    def serves(self) -> bool:
        """Return whether it also answers a call on that socket."""
        return self._server is not None and self._server.serves()

    def serve(self) -> None:
        """Serve on a new socket; UnavailableError if it cannot be created."""
        self.stop()
        calls = _PluginCalls(self.resource, self._decider, self._listed, self._count)
        self._server = grpc_socket.listen(
            self.socket, lambda made: api_grpc.add_DevicePluginServicer_to_server(calls, made)
        )

    def stop(self) -> None:
        """Stop serving."""
        made, self._server = self._server, None
        if made is not None:
            made.stop()

    def _listed(self, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        left = self._left
        try:
            if context.add_callback(self._offer.wake):  # else the call has ended already
                yield from self._offer.changes(context.is_active)
        finally:
            left.set()
            self.left()


class _PluginCalls(api_grpc.DevicePluginServicer):
    """Kubelet's calls, translated for a decider."""

    def __init__(
        self,
        resource: device_ids.Resource,
        decider: CallDecider,
        listed: Callable[[grpc.ServicerContext], Iterator[api.ListAndWatchResponse]],
        count: call_timing.Count,
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
            plugin_messages.PreferredRequest(
                tuple(container_preferred_allocation_request.available_device_ids),
                tuple(container_preferred_allocation_request.must_include_device_ids),
                container_preferred_allocation_request.allocation_size,
            )
            for container_preferred_allocation_request in request.container_requests
        ]
        try:
            found = [self._decider.prefer(self._resource.kind, choice) for choice in asked]
        except Exception as exc:
            self._refuse(context, exc)
        answer = api.PreferredAllocationResponse()
        for preferred in found:
            answer.container_responses.add(device_ids=preferred)
        return answer

    def Allocate(  # noqa: N802
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        kind = self._resource.kind
        try:
            with call_timing.counted(self._count, "allocate"):
                found = [
                    self._decider.allocate(kind, frozenset(container_allocate_request.device_ids))
                    for container_allocate_request in request.container_requests
                ]
        except Exception as exc:
            self._refuse(context, exc)
        return api.AllocateResponse(container_responses=map(as_message, found))

    def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        begun = time.perf_counter()
        over = threading.Event()  # the decision is made, or kubelet has given up
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
        """Log a failure and return it to kubelet."""
        code, text = grpc.StatusCode.INTERNAL, "internal error, see the agent's log"
        if isinstance(exc, ValueError):
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(exc)
        elif isinstance(exc, errors.PyVgpuError):
            log.warning("refused %s: %s", self._resource.name, exc)
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(exc)
        else:
            log.error("failed at a call for %s", self._resource.name, exc_info=exc)
        context.abort(code, f"pyvgpu: {text}")


def as_message(answer: plugin_messages.AllocateResponse) -> api.ContainerAllocateResponse:
    """Return *answer* as kubelet's message for a container."""
    return api.ContainerAllocateResponse(
        envs=answer.variables,
        mounts=[
            api.Mount(
                container_path=mount.inside, host_path=mount.outside, read_only=mount.read_only
            )
            for mount in answer.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=inside, host_path=outside, permissions="rw")
            for inside, outside in answer.nodes
        ],
        annotations=answer.annotations,
        cdi_devices=[api.CDIDevice(name=device) for device in answer.cdi_devices],
    )


def _result(failure: Exception | None) -> call_timing.CallResult:
    if failure is None:
        return call_timing.CallResult.DONE
    waits = isinstance(failure, placement.WaitsError)
    return call_timing.CallResult.WAITS if waits else call_timing.CallResult.REFUSED
