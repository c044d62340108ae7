"""A kubelet as DRA drivers meet it: it finds their sockets, and asks them about claims."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from typing import TYPE_CHECKING, Any

import grpc
from fake_kubelet import SECONDS

from pyvgpu import wire
from pyvgpu.deviceplugin.dra import messages

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

    def meet(self, error: str = "") -> wire.Message:
        """Ask the driver who it is, and say whether it is taken."""
        path = self.registry / "pyvgpu.io-reg.sock"
        info = wire.Message(_call(path, f"{messages.REGISTRATION}/GetInfo", b""))
        said = wire.encode({1: int(not error), 2: error})
        _call(path, f"{messages.REGISTRATION}/NotifyRegistrationStatus", said)
        return info

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, list[Given]]:
        """Return what a pod's claims get, by uid; RefusedError for the first that gets nothing."""
        answer = self._ask("NodePrepareResources", claims)
        found = {}
        for entry in wire.Message(answer).messages(1):
            one = entry.message(2)
            if one.text(2):
                raise RefusedError(one.text(2))
            found[entry.text(1)] = [
                Given(it.texts(1), it.text(2), it.text(3), it.texts(4), it.text(5))
                for it in one.messages(1)
            ]
        return found

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, str]:
        """Tell that claims are over; return what went wrong, by uid."""
        answer = wire.Message(self._ask("NodeUnprepareResources", claims))
        return {it.text(1): it.message(2).text(1) for it in answer.messages(1)}

    def health(self) -> Iterator[dict[str, tuple[int, str]]]:
        """Give how each device is, by name, whenever that is another."""
        with contextlib.closing(self._channel()) as channel:
            call = channel.unary_stream(messages.HEALTH)
            for content in call(b"", timeout=SECONDS):
                yield {
                    it.message(1).text(2): (it.number(2), it.text(5))
                    for it in wire.Message(content).messages(1)
                }

    def _ask(self, method: str, claims: tuple[tuple[str, str, str], ...]) -> bytes:
        asked = [{1: namespace, 2: uid, 3: name} for namespace, uid, name in claims]
        with contextlib.closing(self._channel()) as channel:
            call = channel.unary_unary(f"{messages.SERVICE}/{method}")
            return bytes(call(wire.encode({1: asked}), timeout=60))

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix:{self.plugins / 'pyvgpu.io' / 'dra.sock'}")


def _call(path: Path, method: str, request: bytes) -> bytes:
    with contextlib.closing(grpc.insecure_channel(f"unix:{path}")) as channel:
        return bytes(channel.unary_unary(method)(request, timeout=SECONDS))


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
