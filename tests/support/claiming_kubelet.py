"""A kubelet as DRA drivers meet it: it finds their sockets, and asks them about claims."""

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
    """What the driver has answered of one device."""

    requests: list[str]
    pool: str
    device: str
    cdi: list[str]
    share_id: str


class RefusedError(Exception):
    """A claim was not prepared."""


class ClaimingKubelet:
    """It looks for drivers in a folder."""

    def __init__(self, folder: Path) -> None:
        self.registry = folder / "plugins_registry"
        self.plugins = folder / "plugins"
        self.registry.mkdir()

    @property
    def options(self) -> tuple[object, ...]:
        """Those by which an agent finds it."""
        return "--plugins-registry", self.registry, "--plugins", self.plugins

    def listens(self) -> bool:
        """Tell whether a driver is to be found, and answers."""
        with socket.socket(socket.AF_UNIX) as ours:
            return ours.connect_ex(str(self.registry / "pyvgpu.io-reg.sock")) == 0

    def meet(self, error: str = "") -> plugin_registration_pb2.PluginInfo:
        """Ask the driver who it is, and say whether it is taken."""
        path = self.registry / "pyvgpu.io-reg.sock"
        said = plugin_registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        with contextlib.closing(grpc.insecure_channel(f"unix:{path}")) as channel:
            stub = plugin_registration_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(plugin_registration_pb2.InfoRequest(), timeout=SECONDS)
            stub.NotifyRegistrationStatus(said, timeout=SECONDS)
        return info

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, list[Given]]:
        """Return what a pod's claims get, by uid; RefusedError for the first that gets nothing."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=map(_claim, claims))
        with contextlib.closing(self._channel()) as channel:
            answer = dra_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=60)
        found = {}
        for uid, one in answer.claims.items():
            if one.error:
                raise RefusedError(one.error)
            found[uid] = [
                Given(
                    list(it.request_names),
                    it.pool_name,
                    it.device_name,
                    list(it.cdi_device_ids),
                    it.share_id,
                )
                for it in one.devices
            ]
        return found

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, str]:
        """Tell that claims are over; return what went wrong, by uid."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=map(_claim, claims))
        with contextlib.closing(self._channel()) as channel:
            stub = dra_pb2_grpc.DRAPluginStub(channel)
            answer = stub.NodeUnprepareResources(request, timeout=60)
        return {uid: it.error for uid, it in answer.claims.items()}

    def health(self) -> Iterator[dict[str, tuple[int, str]]]:
        """Give how each device is, by name, whenever that is another."""
        with contextlib.closing(self._channel()) as channel:
            stub = dra_health_pb2_grpc.DRAResourceHealthStub(channel)
            request = dra_health_pb2.NodeWatchResourcesRequest()
            for answer in stub.NodeWatchResources(request, timeout=SECONDS):
                yield {it.device.device_name: (it.health, it.message) for it in answer.devices}

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix:{self.plugins / 'pyvgpu.io' / 'dra.sock'}")


def _claim(named: tuple[str, str, str]) -> dra_pb2.Claim:
    namespace, uid, name = named
    return dra_pb2.Claim(namespace=namespace, uid=uid, name=name)


def claim(uid: str, *results: dict[str, Any], pod: str = "p") -> dict[str, Any]:
    """Return a claim that was allocated."""
    return {
        "metadata": {"name": f"claim-{uid}", "namespace": "team", "uid": uid},
        "status": {
            "allocation": {"devices": {"results": [{**RESULT, **it} for it in results]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}],
        },
    }


def result(uuid: str, vcore: int, vmemory: str, request: str = "vgpu") -> dict[str, Any]:
    """Return a result of an allocation."""
    return {
        "request": request,
        "device": uuid.lower(),
        "shareID": f"share-of-{request}",
        "consumedCapacity": {"vcore": str(vcore), "vmemory": vmemory},
    }
