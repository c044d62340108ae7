"""Data of device-plugin calls: Allocate's answer and GetPreferredAllocation's request."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the node, mounted into a container."""

    inside: str
    outside: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class AllocateResponse:
    """Allocate's answer for a container; kubelet stores it for the lifetime of the pod."""

    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()  # full names, such as pyvgpu.io/grant=0123
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()  # device nodes: inside, outside


@dataclasses.dataclass(frozen=True, slots=True)
class PreferredRequest:
    """Kubelet's request for the preferred ids."""

    available: tuple[str, ...]
    must: tuple[str, ...]
    size: int
