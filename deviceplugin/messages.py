"""What kubelet and a device plugin say to each other: the API v1beta1, and PodResources v1.

Messages by the numbers of their fields; see https://github.com/kubernetes/kubelet, pkg/apis.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
REGISTER = f"/{VERSION}.Registration/Register"
SERVICE = f"{VERSION}.DevicePlugin"
LIST = "/v1.PodResourcesLister/List"

OPTIONS = wire.encode({1: 1, 2: 1})  # PreStartContainer, and GetPreferredAllocation
NOTHING = b""

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the node in a container."""

    inside: str
    outside: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What Allocate answers for a container; kubelet keeps it for as long as the pod lives."""

    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()  # full names, such as pyvgpu.io/grant=0123
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()  # device nodes: inside, outside

    def encode(self) -> bytes:
        """Return a ContainerAllocateResponse."""
        return wire.encode(
            {
                1: wire.labels(self.variables),
                2: [{1: it.inside, 2: it.outside, 3: int(it.read_only)} for it in self.mounts],
                3: [{1: inside, 2: outside, 3: "rw"} for inside, outside in self.nodes],
                4: wire.labels(self.annotations),
                5: [{1: name} for name in self.cdi_devices],
            }
        )

    @classmethod
    def decode(cls, content: bytes) -> Answer:
        """Return what a ContainerAllocateResponse says; ValueError if it is none."""
        read = wire.Message(content)
        return cls(
            read.labels(4),
            tuple(it.text(1) for it in read.messages(5)),
            read.labels(1),
            tuple(Mount(it.text(1), it.text(2), it.number(3) != 0) for it in read.messages(2)),
            tuple((it.text(1), it.text(2)) for it in read.messages(3)),
        )


def registration(endpoint: str, resource: str) -> bytes:
    """Return a RegisterRequest."""
    return wire.encode({1: VERSION, 2: endpoint, 3: resource, 4: OPTIONS})


def listing(everything: Iterable[str], unhealthy: frozenset[str]) -> bytes:
    """Return a ListAndWatchResponse."""
    return wire.encode(
        {1: [{1: it, 2: _UNHEALTHY if it in unhealthy else _HEALTHY} for it in everything]}
    )


def allocation(answers: Iterable[Answer]) -> bytes:
    """Return an AllocateResponse."""
    return wire.encode({1: [it.encode() for it in answers]})


def asked_for(content: bytes) -> list[frozenset[str]]:
    """Return the ids of each container of an AllocateRequest; ValueError if it is none."""
    return [frozenset(it.texts(1)) for it in wire.Message(content).messages(1)]


def about_to_start(content: bytes) -> frozenset[str]:
    """Return the ids of a PreStartContainerRequest; ValueError if it is none."""
    return frozenset(wire.Message(content).texts(1))


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Kubelet asks which of the ids it should take."""

    available: tuple[str, ...]
    must: tuple[str, ...]
    size: int


def choices(content: bytes) -> list[Choice]:
    """Return what a PreferredAllocationRequest asks; ValueError if it is none."""
    return [
        Choice(tuple(it.texts(1)), tuple(it.texts(2)), it.number(3))
        for it in wire.Message(content).messages(1)
    ]


def chosen(answers: Iterable[Iterable[str]]) -> bytes:
    """Return a PreferredAllocationResponse."""
    return wire.encode({1: [{1: list(it)} for it in answers]})
