"""Watch of all nodes, summarized: the oldest kubelet release and the kinds of devices.

Only a node's kinds of devices are kept, not its devices: a cluster has few kinds.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.controller.sidecar import nodes
from pyvgpu.kube import informer, objects

if TYPE_CHECKING:
    import threading

    from pyvgpu.allocator import datatypes
    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.kube.apiserver import ApiServer
    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # lifetime of the summary


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """The projection of a node."""

    machine: nodes.NodeState
    kinds: frozenset[datatypes.NodeDevice]


@dataclasses.dataclass(frozen=True, slots=True)
class _Summary:
    """The summary of all nodes."""

    kinds: tuple[datatypes.NodeDevice, ...] = ()
    oldest: nodes.Release | None = None


class Fleet:
    """Watches the nodes while :meth:`run` runs."""

    def __init__(
        self, api: ApiServer, settings: SidecarSettings, unit: int, counting: informer.Counting
    ) -> None:
        self._settings = settings
        self._unit = unit
        self._seen = informer.Informer(
            api, "/api/v1/nodes", {}, self._read, lambda _: None, counting
        )
        self._summary = _Summary()
        self._due = 0.0

    def run(self, stop: threading.Event) -> None:
        """Watch the nodes until *stop*."""
        self._seen.run(stop)

    @property
    def synced(self) -> bool:
        """Whether all nodes were listed."""
        return self._seen.synced.is_set()

    def oldest_kubelet(self) -> nodes.Release | None:
        """Return the oldest kubelet release; None while it is unknown."""
        return self._sum_up().oldest

    def devices(self) -> tuple[datatypes.NodeDevice, ...]:
        """Return one device of each kind that any node has."""
        return self._sum_up().kinds

    def _sum_up(self) -> _Summary:
        """Return the summary of all nodes, at most AGAIN_SECONDS old."""
        if time.monotonic() >= self._due:
            synced, seen = self.synced, self._seen.values()
            kinds: set[datatypes.NodeDevice] = set()
            for node in seen:
                kinds |= node.kinds
            oldest = nodes.oldest(node.machine for node in seen) if synced else None
            self._summary = _Summary(tuple(kinds), oldest)
            self._due = time.monotonic() + (AGAIN_SECONDS if synced else 0.0)
        return self._summary

    def _read(self, thing: Object) -> _Node:
        read = nodes.read(thing, None, datetime.datetime.now(datetime.UTC), self._settings)
        return _Node(dataclasses.replace(read, images={}), kinds(thing, self._unit))


def kinds(node: Object, unit: int) -> frozenset[datatypes.NodeDevice]:
    """Return the kinds of a node's devices by its agent's annotation; *unit* is the memory unit.

    A kind is a device without its individual properties, such as the UUID.
    """
    metadata = objects.section(node, "metadata")
    text = objects.section(metadata, "annotations").get(names.NODE_DEVICES_ANNOTATION)
    if not isinstance(text, str):
        return frozenset()
    try:
        published = notes.read_node(text)
    except errors.DataError as exc:
        log.warning("ignored the devices of node %s: %s", metadata.get("name"), exc)
        return frozenset()
    if published.memory_unit != unit:
        log.warning(
            "ignored the devices of node %s: its unit of memory is %d, --memory-unit is %d",
            metadata.get("name"),
            published.memory_unit,
            unit,
        )
        return frozenset()
    return frozenset(
        dataclasses.replace(
            device,
            uuid="",
            index=0,
            numa=None,
            links={},
            unhealthy="",
            cordoned=False,
            allocated_by="",
            taken=(),
        )
        for device in published.devices
    )
