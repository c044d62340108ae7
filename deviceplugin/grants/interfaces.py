"""Interfaces and settings that the grant manager depends on."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Protocol

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.subscribers import Subscribers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.deviceplugin import grants
    from pyvgpu.deviceplugin.grants import events, placement, pod_identity
    from pyvgpu.deviceplugin.kubelet import checkpoint_file, plugin_messages, pod_resources


class GrantFiles(Protocol):
    """Writes the files of grants for the container runtime."""

    def answer(self, grant_id: str, vcore: int) -> plugin_messages.AllocateResponse:
        """Return Allocate's answer, before any file of the grant exists."""

    def make(self, grant: grants.Grant) -> None:
        """Write a bound grant's files: all, or those missing or of another driver."""

    def repair(self, grant: grants.Grant) -> None:
        """Write missing files of a grant whose container may run; its driver stays the same."""

    def recall(self, grant_id: str) -> tuple[datatypes.NodeShare, ...]:
        """Return the shares in the files of a lost grant; nothing if it was not bound."""

    def remove(self, grant_id: str) -> None:
        """Remove all files of the grant, in use or not."""

    def revoke(self, grant_id: str) -> None:
        """Start no container on the grant again, and let its processes allocate no more."""

    def is_used(self, grant_id: str) -> bool:
        """Return whether a process of the grant is running."""


@dataclasses.dataclass(frozen=True, slots=True)
class KubeletSources:
    """Kubelet's two sources that match ids to containers."""

    state: checkpoint_file.CheckpointFile
    pods: pod_resources.PodResources


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Units, placement policy and deadlines."""

    unit: int  # bytes of one vmemory
    packing: datatypes.Packing = datatypes.Packing.BINPACK
    bind_seconds: float = agent_settings.BIND_SECONDS
    shares: bool = True  # else the node gives whole devices only
    clock: Callable[[], float] = time.monotonic


@dataclasses.dataclass(frozen=True, slots=True)
class StartPolicy:
    """How a container's pod is asked about before the start; None: there is nothing to ask."""

    # The namespace and name of the pod with that uid.
    find_name: Callable[[str], tuple[str, str]] | None = None
    # The devices that were chosen or requested for a pod; RefusedError if its request is invalid.
    choose: Callable[[pod_identity.KnownPod], placement.Chosen] | None = None
    # Returns once the grants that were made are published.
    wait_published: Callable[[], object] | None = None
    # Called with the bound grants of a pod before one of its containers starts; WaitsError if it
    # must wait, although its devices may be reserved.
    admit: Callable[[Sequence[grants.Grant]], None] | None = None
    # Whether the API server says that a pod is over.
    is_over: Callable[[grants.Owner], bool] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Observers:
    """Events of the grant manager that other parts receive."""

    reported: Subscribers[[events.GrantEvent]] = dataclasses.field(default_factory=Subscribers)
    # An event of that reason about a pod, by uid, is outdated.
    withdrawn: Subscribers[[str, events.Reason]] = dataclasses.field(default_factory=Subscribers)
    bound: Subscribers[[pod_identity.KnownPod, placement.Shares]] = dataclasses.field(
        default_factory=Subscribers
    )
    growing: Subscribers[[grants.Grant]] = dataclasses.field(  # before its quota is raised
        default_factory=Subscribers
    )
    changed: Subscribers[[]] = dataclasses.field(  # a grant or a device has changed
        default_factory=Subscribers
    )
