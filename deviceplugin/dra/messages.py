"""What kubelet and a DRA driver say to each other: dra/v1, and how plugins are registered.

Messages by the numbers of their fields; see https://github.com/kubernetes/kubelet, pkg/apis.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names, wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REGISTRATION = "/pluginregistration.Registration"
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
NOTHING = b""

_VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
_HEALTHY, _UNHEALTHY = 1, 2
_LONGEST = 1000  # letters of what is said of a device


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A claim as kubelet names it."""

    namespace: str
    uid: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A device of a claim that was prepared."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]  # full names, such as pyvgpu.io/grant=0123
    share_id: str = ""


def info(endpoint: str) -> bytes:
    """Return a PluginInfo: kubelet calls at *endpoint*, a socket."""
    return wire.encode({1: "DRAPlugin", 2: names.DRA_DRIVER, 3: endpoint, 4: _VERSIONS})


def registered(content: bytes) -> str:
    """Return why kubelet does not take the plugin; empty if it does."""
    said = wire.Message(content)
    return "" if said.number(1) else said.text(2) or "kubelet does not say why"


def claims(content: bytes) -> list[Named]:
    """Return the claims of a request of either kind; ValueError if it is none."""
    return [Named(it.text(1), it.text(2), it.text(3)) for it in wire.Message(content).messages(1)]


def prepared(found: Mapping[str, Sequence[Prepared] | str]) -> bytes:
    """Return a NodePrepareResourcesResponse: by uid the devices, or why there are none."""
    return wire.encode({1: [{1: uid, 2: _answer(it)} for uid, it in found.items()]})


def _answer(found: Sequence[Prepared] | str) -> bytes:
    if isinstance(found, str):
        return wire.encode({2: found})
    return wire.encode(
        {
            1: [
                {1: it.request, 2: it.pool, 3: it.device, 4: it.cdi}
                | ({5: it.share_id} if it.share_id else {})
                for it in found
            ]
        }
    )


def unprepared(found: Mapping[str, str]) -> bytes:
    """Return a NodeUnprepareResourcesResponse: by uid what went wrong, or nothing."""
    return wire.encode({1: [{1: uid, 2: {1: it}} for uid, it in found.items()]})


def health(pool: str, sick: Mapping[str, str], now: int) -> bytes:
    """Return a NodeWatchResourcesResponse: by device why it is sick, empty if it is well."""
    return wire.encode(
        {
            1: [
                {
                    1: {1: pool, 2: device},
                    2: _UNHEALTHY if reason else _HEALTHY,
                    3: now,
                    5: reason[:_LONGEST],
                }
                for device, reason in sick.items()
            ]
        }
    )
