"""Publish the node's devices as a ResourceSlice, and keep it up to date; see :mod:`.slices`.

Kubelet deletes all slices of a node when it starts, and those of a driver that has not registered
for a while. So slices are watched, and read once more before any write. The slice is created only
after kubelet has registered the driver: a pod with an earlier allocation would have to wait until
kubelet retries, which may take a minute.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.deviceplugin.cluster import watching
from pyvgpu.deviceplugin.dra import resource_slices
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyvgpu.deviceplugin.cluster import own_node

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two checks whether kubelet has registered the driver
_PATH = f"/apis/{resource_slices.GROUP}/resourceslices"


class SlicePublisher:
    """Publishes the result of *devices* (None: unknown), from :meth:`run` until :meth:`stop`.

    *met* tells whether kubelet has registered the driver; before that no slice is created.
    """

    def __init__(
        self,
        node: own_node.OwnNode,
        devices: Callable[[resource_slices.Able], list[dict[str, Any]] | None],
        met: Callable[[], bool],
    ) -> None:
        self._api = node.api
        self._node = node
        self._devices = devices
        self._met = met
        self._able = resource_slices.Able()
        self._meta: dict[str, Any] | None = None  # of the node
        self._changed = threading.Condition()
        self._wanted = 0  # changes so far
        self._stopped = False
        self._written = 0  # changes that are published
        chosen = f"spec.nodeName={node.name},spec.driver={names.DRA_DRIVER}"
        self._query = {"fieldSelector": chosen}
        self._seen: informer.Informer[apiserver.Object] = informer.Informer(
            node.api, _PATH, self._query, lambda published: published, lambda _: self.changed()
        )
        self.watch = watching.Watching(node.api, self._seen)

    def changed(self) -> None:
        """Request a comparison soon."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Let :meth:`run` end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def is_current(self) -> bool:
        """Whether all that has changed so far is published."""
        return self._written >= self._wanted

    def run(self) -> None:
        """Write after each change, and whenever the slice was deleted."""
        silent = False
        while True:
            with self._changed:
                begun = self._wanted
            try:
                self.look()
                self._written, silent = begun, False
            except apiserver.ServerError as exc:
                if not silent:
                    log.warning("cannot publish the ResourceSlice: %s", exc)
                silent = True
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or (self._wanted > begun and not silent),  # noqa: B023
                    LOOK_SECONDS,
                )
                if self._stopped:
                    return

    def look(self) -> None:
        """Compare once, and write a difference; ServerError if the API server fails."""
        devices = self._devices(self._able)
        if devices is None:
            return
        if self._meta is None:
            self._meta = dict(self._node.metadata())
        wanted = resource_slices.slice_of(self._meta, devices)
        if self._seen.current.is_set() and not self._differs(wanted, self._seen.values()):
            return
        there = self._api.call("GET", _PATH, self._query)["items"]
        name = wanted["metadata"]["name"]
        ours = _named(name, there)
        for published in there:
            if published is not ours:  # left by another version of this agent
                self._api.call("DELETE", f"{_PATH}/{published['metadata']['name']}")
        if ours is None and not self._met():
            return
        if ours is None:
            self._learn(wanted, self._api.call("POST", _PATH, body=wanted))
        elif not resource_slices.same(wanted, ours):
            after = resource_slices.renewed(wanted, ours)
            self._learn(wanted, self._api.call("PUT", f"{_PATH}/{name}", body=after))

    def _differs(self, wanted: dict[str, Any], there: Sequence[apiserver.Object]) -> bool:
        """Tell whether the slices that are *there* require a write."""
        ours = _named(wanted["metadata"]["name"], there)
        if len(there) > (ours is not None):
            return True
        return self._met() if ours is None else not resource_slices.same(wanted, ours)

    def _learn(self, wanted: dict[str, Any], kept: dict[str, Any]) -> None:
        """Learn from the API server's response, *kept*, which fields it has dropped."""
        self._meta = None  # the node may be re-created before the next write
        count, number = len(wanted["spec"]["devices"]), kept["spec"]["pool"]["generation"]
        log.info("published %d devices for claims, generation %s", count, number)
        able = self._able.both(resource_slices.able_by(wanted, kept))
        if able != self._able:
            self._able = able
            for what in able.lacks:
                log.warning("this cluster does not support %s", what)
            self.changed()


def _named(name: str, there: Iterable[apiserver.Object]) -> apiserver.Object | None:
    return next((published for published in there if published["metadata"]["name"] == name), None)
