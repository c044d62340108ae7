"""Fake kubelet for DRA drivers: registers their sockets, prepares and unprepares claims."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from typing import TYPE_CHECKING, Any

import grpc
from fake_kubelet import SECONDS

from pyvgpu._api import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_pb2,
    dra_pb2_grpc,
    plugin_registration_pb2,
    plugin_registration_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESULT = {"driver": "pyvgpu.io", "pool": "node-1"}


@dataclasses.dataclass(frozen=True)
class Given:
    """One device in the driver's answer."""

    requests: list[str]
    pool: str
    device: str
    cdi: list[str]
    share_id: str


class RefusedError(Exception):
    """The driver did not prepare a claim."""


class ClaimingKubelet:
    """A kubelet that looks for DRA drivers in a folder."""

    def __init__(self, folder: Path) -> None:
        self.registry = folder / "plugins_registry"
        self.plugins = folder / "plugins"
        self.registry.mkdir()

    @property
    def options(self) -> tuple[object, ...]:
        """The agent's options for this kubelet's paths."""
        return "--plugins-registry", self.registry, "--plugins", self.plugins

    def listens(self) -> bool:
        """Return whether a driver accepts connections on its registration socket."""
        with socket.socket(socket.AF_UNIX) as ours:
            return ours.connect_ex(str(self.registry / "pyvgpu.io-reg.sock")) == 0

    def meet(self, error: str = "") -> plugin_registration_pb2.PluginInfo:
        """Register the driver, or refuse it with *error*; return its PluginInfo."""
        path = self.registry / "pyvgpu.io-reg.sock"
        said = plugin_registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        with contextlib.closing(grpc.insecure_channel(f"unix:{path}")) as channel:
            stub = plugin_registration_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(plugin_registration_pb2.InfoRequest(), timeout=SECONDS)
            stub.NotifyRegistrationStatus(said, timeout=SECONDS)
        return info

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, list[Given]]:
        """Prepare claims; return their devices by claim uid, or raise the first RefusedError."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=map(_claim, claims))
        with contextlib.closing(self._channel()) as channel:
            answer = dra_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=60)
        found = {}
        for uid, one in answer.claims.items():
            if one.error:
                raise RefusedError(one.error)
            found[uid] = [
                Given(
                    list(device.request_names),
                    device.pool_name,
                    device.device_name,
                    list(device.cdi_device_ids),
                    device.share_id,
                )
                for device in one.devices
            ]
        return found

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, str]:
        """Unprepare claims; return the driver's errors by claim uid."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=map(_claim, claims))
        with contextlib.closing(self._channel()) as channel:
            stub = dra_pb2_grpc.DRAPluginStub(channel)
            answer = stub.NodeUnprepareResources(request, timeout=60)
        return {uid: result.error for uid, result in answer.claims.items()}

    def health(self) -> Iterator[dict[str, tuple[int, str]]]:
        """Yield the health of each device, by name, at every change."""
        with contextlib.closing(self._channel()) as channel:
            stub = dra_health_pb2_grpc.DRAResourceHealthStub(channel)
            request = dra_health_pb2.NodeWatchResourcesRequest()
            for answer in stub.NodeWatchResources(request, timeout=SECONDS):
                yield {
                    device.device.device_name: (device.health, device.message)
                    for device in answer.devices
                }

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix:{self.plugins / 'pyvgpu.io' / 'dra.sock'}")


def _claim(named: tuple[str, str, str]) -> dra_pb2.Claim:
    namespace, uid, name = named
    return dra_pb2.Claim(namespace=namespace, uid=uid, name=name)


def claim(uid: str, *results: dict[str, Any], pod: str = "p") -> dict[str, Any]:
    """Return an allocated claim."""
    return {
        "metadata": {"name": f"claim-{uid}", "namespace": "team", "uid": uid},
        "status": {
            "allocation": {
                "devices": {"results": [{**RESULT, **allocated} for allocated in results]}
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}],
        },
    }


def result(uuid: str, vcore: int, vmemory: str, request: str = "vgpu") -> dict[str, Any]:
    """Return a device result of an allocation."""
    return {
        "request": request,
        "device": uuid.lower(),
        "shareID": f"share-of-{request}",
        "consumedCapacity": {"vcore": str(vcore), "vmemory": vmemory},
    }
