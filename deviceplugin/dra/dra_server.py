"""The gRPC sockets of a DRA driver: one for registration with kubelet, one for kubelet's calls.

Kubelet watches a folder for sockets, and queries each; so the driver does not register itself. A
restarted kubelet finds them, too. Sockets that are gone are created again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu._api import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_pb2,
    dra_pb2_grpc,
    plugin_registration_pb2,
    plugin_registration_pb2_grpc,
)
from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.deviceplugin.dra import claim_grants
from pyvgpu.deviceplugin.kubelet import call_timing
from pyvgpu.deviceplugin.subscribers import Subscribers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import grpc

    from pyvgpu.deviceplugin.dra.prepare import Preparer

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0  # between two checks that the sockets exist and respond

_VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
_LONGEST = 1000  # characters of a health message


class Health(dra_health_pb2_grpc.DRAResourceHealthServicer):
    """Streams the devices' health to kubelet: all of it first, then after each change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unhealthy: dict[tuple[str, str], str] | None = None  # None: nothing is known yet

    def set(self, unhealthy: Mapping[tuple[str, str], str]) -> None:
        """Set why each device, by pool and name, is unhealthy; empty if it is healthy."""
        with self._changed:
            if self._unhealthy != unhealthy:
                self._unhealthy = dict(unhealthy)
                self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def NodeWatchResources(  # noqa: N802 - the API's name
        self,
        request: dra_health_pb2.NodeWatchResourcesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,
    ) -> Iterator[dra_health_pb2.NodeWatchResourcesResponse]:
        """Yield the health after each change, while the call is active."""
        if not context.add_callback(self._wake):
            return
        before: dict[tuple[str, str], str] | None = None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: not context.is_active() or self._unhealthy != before  # noqa: B023
                )
                if not context.is_active() or self._unhealthy is None:
                    return
                before = self._unhealthy
            yield self._said(before)

    def _said(
        self, unhealthy: Mapping[tuple[str, str], str]
    ) -> dra_health_pb2.NodeWatchResourcesResponse:
        answer = dra_health_pb2.NodeWatchResourcesResponse()
        now = int(time.time())
        for (pool, name), reason in unhealthy.items():
            answer.devices.add(
                device=dra_health_pb2.DeviceIdentifier(pool_name=pool, device_name=name),
                health=dra_health_pb2.UNHEALTHY if reason else dra_health_pb2.HEALTHY,
                last_updated_time=now,
                message=reason[:_LONGEST],
            )
        return answer


class Sockets:
    """Both sockets, while :meth:`run` runs; *folder* is for the one that kubelet calls."""

    def __init__(
        self,
        registry: Path,
        folder: Path,
        preparer: Preparer,
        health: Health,
        count: call_timing.Count = lambda *_: None,
    ) -> None:
        self._found = registry / f"{names.DRA_DRIVER}-reg.sock"
        self._asked = folder / names.DRA_DRIVER / "dra.sock"
        self._preparer = preparer
        self._health = health
        self._servers: dict[Path, grpc_socket.GrpcServer] = {}
        self.trouble = "kubelet has not queried the DRA driver's registration socket yet"
        self.is_registered = False  # whether kubelet has registered the driver
        self.registered: Subscribers[[]] = Subscribers()  # called at each registration
        self._count = count

    def run(self, wait: Callable[[float], bool]) -> None:
        """Serve until *wait*, which sleeps for some seconds, returns true."""
        problem = ""
        try:
            while True:
                try:
                    self._poll()
                    problem = ""
                except errors.UnavailableError as exc:
                    if str(exc) != problem:
                        log.warning("cannot serve claims: %s", exc)
                    self.trouble = problem = str(exc)
                if wait(POLL_SECONDS):
                    return
        finally:
            self._preparer.stop()
            for path in list(self._servers):
                self._stop(path)

    def _poll(self) -> None:
        for path, add in (
            (self._asked, self._add_driver),  # first: kubelet calls it as soon as it registers
            (self._found, self._add_registration),
        ):
            known = self._servers.get(path)
            if known is None or not known.serves():
                self._stop(path)
                self._servers[path] = grpc_socket.listen(path, add, folder_mode=0o750)

    def _stop(self, path: Path) -> None:
        known = self._servers.pop(path, None)
        if known is not None:
            known.stop()

    def _add_registration(self, made: grpc.Server) -> None:
        calls = _Registration(str(self._asked), self._noted)
        plugin_registration_pb2_grpc.add_RegistrationServicer_to_server(calls, made)

    def _add_driver(self, made: grpc.Server) -> None:
        calls = _Driver(self._preparer, self._count)
        dra_pb2_grpc.add_DRAPluginServicer_to_server(calls, made)
        dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server(self._health, made)

    def _noted(self, trouble: str) -> None:
        """Note that kubelet has registered the driver, or why not."""
        self.trouble = trouble
        if trouble:
            log.warning("kubelet did not register the DRA driver: %s", trouble)
        else:
            log.info("kubelet has registered the DRA driver %s", names.DRA_DRIVER)
            self.is_registered = True
            self.registered()


class _Registration(plugin_registration_pb2_grpc.RegistrationServicer):
    """Kubelet's registration calls: identifies the driver, and receives the result."""

    def __init__(self, endpoint: str, noted: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._noted = noted

    def GetInfo(  # noqa: N802 - these are the API's names
        self,
        request: plugin_registration_pb2.InfoRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> plugin_registration_pb2.PluginInfo:
        return plugin_registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=names.DRA_DRIVER,
            endpoint=self._endpoint,
            supported_versions=_VERSIONS,
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: plugin_registration_pb2.RegistrationStatus,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> plugin_registration_pb2.RegistrationStatusResponse:
        taken = request.plugin_registered
        self._noted("" if taken else request.error or "kubelet gives no reason")
        return plugin_registration_pb2.RegistrationStatusResponse()


class _Driver(dra_pb2_grpc.DRAPluginServicer):
    """Kubelet's calls about claims, translated for the preparer."""

    def __init__(self, preparer: Preparer, count: call_timing.Count) -> None:
        self._preparer = preparer
        self._count = count

    def NodePrepareResources(  # noqa: N802
        self,
        request: dra_pb2.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> dra_pb2.NodePrepareResourcesResponse:
        with call_timing.counted(self._count, "prepare") as call:
            found = self._preparer.prepare(_named(request.claims))
            call.done = not any(isinstance(outcome, str) for outcome in found.values())
        answer = dra_pb2.NodePrepareResourcesResponse()
        for uid, one in found.items():
            answer.claims[uid].CopyFrom(_prepared(one))
        return answer

    def NodeUnprepareResources(  # noqa: N802
        self,
        request: dra_pb2.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        with call_timing.counted(self._count, "unprepare") as call:
            found = self._preparer.unprepare(_named(request.claims))
            call.done = not any(found.values())
        answer = dra_pb2.NodeUnprepareResourcesResponse()
        for uid, error in found.items():
            answer.claims[uid].error = error
        return answer


def _named(asked: Sequence[dra_pb2.Claim]) -> list[claim_grants.Named]:
    return [claim_grants.Named(claim.namespace, claim.uid, claim.name) for claim in asked]


def _prepared(
    found: Sequence[claim_grants.Prepared] | str,
) -> dra_pb2.NodePrepareResourceResponse:
    """Return the response for a claim: its devices, or the error."""
    if isinstance(found, str):
        return dra_pb2.NodePrepareResourceResponse(error=found)
    answer = dra_pb2.NodePrepareResourceResponse()
    for prepared in found:
        answer.devices.add(
            request_names=[prepared.request],
            pool_name=prepared.pool,
            device_name=prepared.device,
            cdi_device_ids=prepared.cdi,
            share_id=prepared.share_id or None,
        )
    return answer
