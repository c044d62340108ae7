"""Runs the agent's device plugins against a fake kubelet, without the rest of a node."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import TYPE_CHECKING

import waiting

from pyvgpu import names
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.grants import grant_log, interfaces, manager
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, plugin_messages, pod_resources
from pyvgpu.deviceplugin.kubelet.offers import Offer
from pyvgpu.deviceplugin.plugin import plugin_server, registration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fake_kubelet import FakeKubelet, Pod

    from pyvgpu.deviceplugin.grants import Grant

UNIT = 256 << 20
UNITS = 16  # of a device


def devices(count: int, **more: object) -> tuple[datatypes.NodeDevice, ...]:
    """Return devices of 4 GiB each."""
    return tuple(
        datatypes.NodeDevice(f"GPU-{index}", index, UNITS * UNIT, **more)  # type: ignore[arg-type]
        for index in range(count)
    )


class Folders:
    """Grant backend that only records what it would create."""

    def __init__(self) -> None:
        self.made: dict[str, Grant] = {}
        self.times: collections.Counter[str] = collections.Counter()  # how often each was made
        self.used: set[str] = set()
        self.revoked: set[str] = set()

    def answer(self, grant_id: str, vcore: int) -> plugin_messages.AllocateResponse:
        return plugin_messages.AllocateResponse(
            {names.GRANT_KIND: grant_id}, (f"{names.GRANT_KIND}={grant_id}",)
        )

    def make(self, grant: Grant) -> None:
        assert grant.bound
        self.made[grant.id] = grant
        self.times[grant.id] += 1

    repair = make

    def recall(self, grant_id: str) -> tuple[datatypes.NodeShare, ...]:
        return self.made[grant_id].shares if grant_id in self.made else ()

    def remove(self, grant_id: str) -> None:
        self.made.pop(grant_id, None)

    def revoke(self, grant_id: str) -> None:
        self.revoked.add(grant_id)

    def is_used(self, grant_id: str) -> bool:
        return grant_id in self.used


@dataclasses.dataclass
class Room:
    """A running agent."""

    kubelet: FakeKubelet
    grant_manager: manager.GrantManager
    checkpoint: grant_log.Checkpoint
    folders: Folders
    offers: dict[device_ids.ResourceKind, Offer]

    def start(self, pod: Pod, name: str) -> Grant:
        """Start a container; return its grant, the one that CDI would resolve."""
        (device,) = self.kubelet.start_container(pod, name).cdi_devices
        return self.folders.made[device.partition("=")[2]]

    def run(self, pod: Pod, name: str) -> str:
        """Admit a pod and start that container; return its shares as text()."""
        return text(self.start(self.kubelet.admit(pod), name))


def text(grant: Grant) -> str:
    """Return a grant's shares as text, such as ``30 2 GPU-0``: vcore, memory units, device."""
    return " + ".join(
        f"{share.vcore} {share.vmemory // UNIT} {share.uuid}" for share in grant.shares
    )


@contextlib.contextmanager
def running(
    kubelet: FakeKubelet,
    folder: Path,
    has: tuple[datatypes.NodeDevice, ...],
    resources: tuple[device_ids.Resource, device_ids.Resource] = device_ids.OURS,
    policy: interfaces.StartPolicy = interfaces.StartPolicy(),  # noqa: B008 - it is frozen
    **sizes: object,
) -> Iterator[Room]:
    """Run an agent on a node with these devices; yield once kubelet has its resources."""
    offers = {resource.kind: Offer(resource) for resource in resources}
    folders = Folders()
    pods = pod_resources.PodResources(
        kubelet.pod_resources, seconds=waiting.PROMPT / 2, retry_seconds=1
    )
    with grant_log.Checkpoint(folder / "state", "node-1") as kept:
        grant_manager = manager.GrantManager(
            kept,
            folders,
            interfaces.KubeletSources(checkpoint_file.CheckpointFile(kubelet.folder), pods),
            interfaces.Sizes(UNIT, **sizes),  # type: ignore[arg-type]
            offers,
            policy,
            interfaces.Observers(),
        )
        grant_manager.see(has)
        grant_manager.recover()
        plugins = [
            plugin_server.Plugin(kubelet.folder, offer, grant_manager) for offer in offers.values()
        ]
        with waiting.beside(registration.Registrar(kubelet.folder, plugins)):
            kubelet.until_offered((resources[0].name, resources[1].name))
            yield Room(kubelet, grant_manager, kept, folders, offers)
