"""Index of the grants, by kubelet's ids and by pod.

Pure. There may be hundreds, with dozens of ids each, and each call of kubelet concerns one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyvgpu.deviceplugin.grants import Grant


class GrantIndex:
    """Grants by id; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grants: dict[str, Grant] = {}
        # Whether bound -> id of kubelet -> ids of the grants that have it.
        self._vcore: dict[bool, dict[str, set[str]]] = {True: {}, False: {}}
        self._vmemory: dict[bool, dict[str, set[str]]] = {True: {}, False: {}}
        self._pods: dict[str, set[str]] = {}  # the same by the pods' uids
        self._names: dict[str, set[str]] = {}  # and by the pods' namespaces and names
        self._shown: Mapping[str, Grant] | None = None  # a snapshot of the current grants

    @property
    def grants(self) -> Mapping[str, Grant]:
        """A snapshot of all grants: later changes are not in it."""
        with self._lock:
            if self._shown is None:
                self._shown = dict(self._grants)
            return self._shown

    def change(self, made: Iterable[Grant], gone: Iterable[str]) -> None:
        """Add or replace the grants *made*, and remove those *gone*."""
        with self._lock:
            self._shown = None
            for grant in made:
                self._forget(grant.id)
                self._grants[grant.id] = grant
                for holders, own in self._indices(grant):
                    for key in own:
                        if key in holders:
                            holders[key].add(grant.id)
                        else:  # mostly: no other grant has the id
                            holders[key] = {grant.id}
            for grant_id in gone:
                self._forget(grant_id)

    def having(self, kind: ResourceKind, wanted: Iterable[str], *, bound: bool) -> list[Grant]:
        """Return the *bound*, or unbound, grants that have any of the ids *wanted*."""
        with self._lock:
            holders = (self._vcore if kind is ResourceKind.VCORE else self._vmemory)[bound]
            found = {
                one for wanted_id in wanted if wanted_id in holders for one in holders[wanted_id]
            }
            return [self._grants[grant_id] for grant_id in found]

    def are_open(self, kind: ResourceKind, wanted: Iterable[str]) -> bool:
        """Return whether any unbound grant has any of the ids *wanted*."""
        holders = (self._vcore if kind is ResourceKind.VCORE else self._vmemory)[False]
        return any(wanted_id in holders for wanted_id in wanted)

    def of_pod(self, uid: str) -> list[Grant]:
        """Return the grants of a pod."""
        with self._lock:
            return [self._grants[grant_id] for grant_id in self._pods.get(uid, ())]

    def named(self, namespace: str, name: str) -> list[Grant]:
        """Return the grants of all pods that have, or had, that name."""
        with self._lock:
            return [
                self._grants[grant_id] for grant_id in self._names.get(f"{namespace}/{name}", ())
            ]

    def _forget(self, grant_id: str) -> None:
        before = self._grants.pop(grant_id, None)
        if before is None:
            return
        for holders, own in self._indices(before):
            for key in own:
                ids = holders[key]
                ids.discard(grant_id)
                if not ids:
                    del holders[key]

    def _indices(self, grant: Grant) -> Iterator[tuple[dict[str, set[str]], Iterable[str]]]:
        yield self._vcore[grant.bound], grant.vcore_ids
        yield self._vmemory[grant.bound], grant.vmemory_ids
        if grant.owner is not None:
            yield self._pods, (grant.owner.uid,)
            yield self._names, (f"{grant.owner.namespace}/{grant.owner.pod}",)
