"""What a container gets of a device plugin, and what a plugin is asked to prefer: as facts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Kubelet asks which of the ids it should take."""

    available: tuple[str, ...]
    must: tuple[str, ...]
    size: int
