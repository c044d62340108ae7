"""Publish the node's devices as ResourceSlices, and keep them up to date.

Kubelet deletes all slices of a node when it starts, and those of a driver that has not registered
for a while. So slices are watched, and read once more before any write. A slice is created only
after kubelet has registered the driver: a pod with an earlier allocation would have to wait until
kubelet retries, which may take a minute.

See :mod:`.resource_slices`, and :mod:`.mig_partitions` for the pool of MIG partitions. Devices
without the counters that exclude each other must never be published, so a dry run asks the API
server first whether it stores counters.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.deviceplugin.cluster import agent_watch
from pyvgpu.deviceplugin.dra import mig_partitions, resource_slices
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pyvgpu.deviceplugin.cluster import own_node

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0  # between two checks whether kubelet has registered the driver
_PATH = f"/apis/{resource_slices.GROUP}/resourceslices"
# Statuses of responses: the second means that the server does not accept such an object.
_FORBIDDEN, _INVALID = 403, 422


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What the node offers to claims."""

    devices: Sequence[dict[str, Any]]
    gpus: tuple[mig_partitions.Partitioned, ...] = ()  # whose partitions are devices


class SlicePublisher:
    """Publishes the result of *contents* (None: unknown), from :meth:`run` until :meth:`stop`.

    *is_registered* returns whether kubelet has registered the driver; before, no slice is created.
    *in_use* returns the names of the devices that claims have; None if they cannot be read.
    """

    def __init__(
        self,
        node: own_node.OwnNode,
        contents: Callable[[resource_slices.ServerSupport], Contents | None],
        is_registered: Callable[[], bool],
        in_use: Callable[[], Collection[str] | None] = lambda: None,
    ) -> None:
        self._api = node.api
        self._node = node
        self._contents = contents
        self._is_registered = is_registered
        self._in_use = in_use
        self._support = resource_slices.ServerSupport()
        self._form: mig_partitions.Form | None = None  # None: the server was not asked yet
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
        self.watch = agent_watch.Watching(node.api, self._seen)

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
                self.poll()
                self._written, silent = begun, False
            except apiserver.ServerError as exc:
                if not silent:
                    log.warning("cannot publish the ResourceSlice: %s", exc)
                silent = True
                if exc.status == _INVALID:
                    self._form = None  # the server may be of another version now
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or (self._wanted > begun and not silent),  # noqa: B023
                    POLL_SECONDS,
                )
                if self._stopped:
                    return

    def poll(self) -> None:
        """Compare once, and write a difference; ServerError if the API server fails."""
        contents = self._contents(self._support)
        if contents is not None and contents.gpus and self._form is None:
            self._ask(contents.gpus)
            contents = self._contents(self._support)
        if contents is None:
            return
        if self._seen.current.is_set() and not self._differs(contents, self._seen.values()):
            return
        there: list[apiserver.Object] = self._api.call("GET", _PATH, self._query)["items"]
        pools = self._pools(contents, there)
        wanted = {one["metadata"]["name"] for pool in pools for one in pool}
        for pool in pools:
            self._write(pool, [one for one in there if _is_of(pool, one)])
        for published in there:
            name = published["metadata"]["name"]
            if name not in wanted:  # not needed any more, or left by another version of this agent
                self._api.call("DELETE", f"{_PATH}/{name}")

    def _pools(
        self, contents: Contents, there: Iterable[apiserver.Object]
    ) -> list[list[dict[str, Any]]]:
        """Return the wanted slices of each pool; *there* are the published ones."""
        if self._meta is None:
            self._meta = dict(self._node.metadata())
        gpus = mig_partitions.held_back(contents.gpus, there, self._in_use, self._support)
        form = self._form or mig_partitions.Form.SEPARATE
        pools = [
            resource_slices.device_slices(self._meta, contents.devices),
            mig_partitions.slices_of(self._meta, gpus, form),
        ]
        return [pool for pool in pools if pool]

    def _differs(self, contents: Contents, there: Sequence[apiserver.Object]) -> bool:
        """Return whether the slices that are *there* require a write."""
        pools = self._pools(contents, there)
        wanted = {one["metadata"]["name"] for pool in pools for one in pool}
        if any(one["metadata"]["name"] not in wanted for one in there):
            return True
        for pool in pools:
            own = [one for one in there if _is_of(pool, one)]
            if resource_slices.differs(pool, own) and (
                len(own) == len(pool) or self._is_registered()
            ):
                return True
        return False

    def _write(self, pool: Sequence[dict[str, Any]], there: Sequence[apiserver.Object]) -> None:
        """Write all slices of a *pool*, of which these are *there*, if any differs."""
        known = {one["metadata"]["name"]: one for one in there}
        if not resource_slices.differs(pool, there):
            return
        if not self._is_registered() and any(one["metadata"]["name"] not in known for one in pool):
            return
        last = max((one["spec"]["pool"]["generation"] for one in there), default=0)
        for wanted in pool:
            name = wanted["metadata"]["name"]
            after = resource_slices.renewed(wanted, known.get(name), last + 1)
            if name in known:
                self._learn(wanted, self._api.call("PUT", f"{_PATH}/{name}", body=after))
            else:
                self._learn(wanted, self._api.call("POST", _PATH, body=after))

    def _ask(self, gpus: Sequence[mig_partitions.Partitioned]) -> None:
        """Ask the API server how it wants counters, and whether it stores them."""
        form = mig_partitions.form_of(self._version())
        if self._meta is None:
            self._meta = dict(self._node.metadata())
        probe, *_ = mig_partitions.slices_of(self._meta, gpus, form)
        name = resource_slices.name_of(self._node.name, ".probe")
        meta = {**probe["metadata"], "name": name}
        try:
            kept = self._api.call("POST", _PATH, {"dryRun": "All"}, {**probe, "metadata": meta})
        except apiserver.ServerError as exc:
            if exc.status != _INVALID:
                raise
            log.warning("this cluster refuses MIG partitions: %s", exc)
            support = resource_slices.ServerSupport(partitions=False)
        else:
            support = resource_slices.support_by(probe, kept)
        self._form = form
        self._settle(resource_slices.ServerSupport(partitions=support.partitions))

    def _version(self) -> dict[str, Any]:
        """Return the API server's version; empty if it does not tell it to us."""
        try:
            return self._api.call("GET", "/version")
        except apiserver.ServerError as exc:
            if exc.status in (_FORBIDDEN, apiserver.NOT_FOUND):
                return {}
            raise

    def _learn(self, wanted: dict[str, Any], kept: dict[str, Any]) -> None:
        """Learn from the API server's response, *kept*, which fields it has dropped."""
        self._meta = None  # the node may be re-created before the next write
        spec = wanted["spec"]
        log.info(
            "published %d devices for claims in pool %s, generation %s",
            len(spec.get("devices") or ()),
            spec["pool"]["name"],
            kept["spec"]["pool"]["generation"],
        )
        if self._settle(resource_slices.support_by(wanted, kept)):
            self.changed()

    def _settle(self, found: resource_slices.ServerSupport) -> bool:
        """Publish only fields that the server stores, as *found*; whether that is new."""
        support = self._support.both(found)
        if support == self._support:
            return False
        known, self._support = set(self._support.lacks), support
        for what in support.lacks:
            if what not in known:
                log.warning("this cluster does not support %s", what)
        return True


def _is_of(pool: Sequence[dict[str, Any]], published: apiserver.Object) -> bool:
    """Return whether a slice that is published is one of those of a *pool*, or has their names."""
    own = pool[0]["spec"]["pool"]["name"]
    same = any(one["metadata"]["name"] == published["metadata"]["name"] for one in pool)
    return same or published["spec"]["pool"]["name"] == own
