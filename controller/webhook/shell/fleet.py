"""What is known of all nodes: the oldest kubelet, and the kinds of devices that there are.

Of a node is kept which kinds it has, not which devices: a cluster has a few.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.controller import objects
from pyvgpu.controller.sidecar import nodes
from pyvgpu.kube import informer

if TYPE_CHECKING:
    import threading

    from pyvgpu.allocator import facts
    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar.settings import Settings
    from pyvgpu.kube.apiserver import ApiServer

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # until all nodes are looked at anew


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """What is kept of a node."""

    machine: nodes.Node
    kinds: frozenset[facts.Device]


@dataclasses.dataclass(frozen=True, slots=True)
class _Summary:
    """What all nodes are together."""

    kinds: tuple[facts.Device, ...] = ()
    oldest: nodes.Release | None = None


class Fleet:
    """Follows the nodes from :meth:`run` on."""

    def __init__(
        self, api: ApiServer, settings: Settings, unit: int, counting: informer.Counting
    ) -> None:
        self._settings = settings
        self._unit = unit
        self._seen = informer.Informer(
            api, "/api/v1/nodes", {}, self._read, lambda _: None, counting
        )
        self._summary = _Summary()
        self._due = 0.0

    def run(self, stop: threading.Event) -> None:
        """Follow the nodes until *stop*."""
        self._seen.run(stop)

    @property
    def synced(self) -> bool:
        """Whether all nodes were seen."""
        return self._seen.synced.is_set()

    def oldest_kubelet(self) -> nodes.Release | None:
        """Return the oldest kubelet that a pod may meet, None while that is not known."""
        return self._sum_up().oldest

    def devices(self) -> tuple[facts.Device, ...]:
        """Return one device of each kind that any node has."""
        return self._sum_up().kinds

    def _sum_up(self) -> _Summary:
        """Return what all nodes are together, as it was some seconds ago at most."""
        if time.monotonic() >= self._due:
            synced, seen = self.synced, self._seen.values()
            kinds: set[facts.Device] = set()
            for node in seen:
                kinds |= node.kinds
            oldest = nodes.oldest(it.machine for it in seen) if synced else None
            self._summary = _Summary(tuple(kinds), oldest)
            self._due = time.monotonic() + (AGAIN_SECONDS if synced else 0.0)
        return self._summary

    def _read(self, thing: Object) -> _Node:
        read = nodes.read(thing, None, datetime.datetime.now(datetime.UTC), self._settings)
        return _Node(dataclasses.replace(read, images={}), kinds(thing, self._unit))


def kinds(node: Object, unit: int) -> frozenset[facts.Device]:
    """Return the kinds of a node's devices, as its agent tells; *unit* is that of all nodes.

    A kind is a device without what it has alone.
    """
    metadata = objects.section(node, "metadata")
    text = objects.section(metadata, "annotations").get(names.NODE_DEVICES_ANNOTATION)
    if not isinstance(text, str):
        return frozenset()
    try:
        told = notes.read_node(text)
    except errors.DataError as exc:
        log.warning("passed over the devices of node %s: %s", metadata.get("name"), exc)
        return frozenset()
    if told.memory_unit != unit:
        log.warning(
            "passed over the devices of node %s: its unit of memory is %d, --memory-unit is %d",
            metadata.get("name"),
            told.memory_unit,
            unit,
        )
        return frozenset()
    return frozenset(
        dataclasses.replace(
            it, uuid="", index=0, numa=None, links={}, sick="", cordoned=False, door=""
        )
        for it in told.devices
    )
