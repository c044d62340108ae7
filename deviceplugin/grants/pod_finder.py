"""Identify the pods of containers that are about to start, from kubelet's state.

A pod that is still not matched after a deadline is refused for good. It is then evicted through
the API server; kubelet alone would retry its start forever.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.grants import events, grant_binding, pod_identity
from pyvgpu.deviceplugin.grants.placement import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from pyvgpu.deviceplugin import grants
    from pyvgpu.deviceplugin.grants import interfaces
    from pyvgpu.deviceplugin.kubelet import checkpoint_file, pod_resources


class PodFinder:
    """Queries kubelet."""

    def __init__(
        self,
        sources: interfaces.KubeletSources,
        refused: Doubts,
        known: Callable[[], Mapping[str, grants.Grant]],
        report: Callable[[events.GrantEvent], None],
    ) -> None:
        self._sources = sources
        self._doubts = refused
        self._known = known
        self._report = report

    def prepare(self) -> None:
        """Read kubelet's checkpoint in advance: it is cached, and rarely changes until needed."""
        with contextlib.suppress(errors.UnavailableError):
            self._sources.state.read()

    def find(
        self, asked: Sequence[grant_binding.StartingIds]
    ) -> list[grant_binding.IdentifiedPod | Exception]:
        """Return the pods of the containers that hold these ids; RefusedError if unclear."""
        before = self._known()
        try:
            listing, entries = self._sources.pods.listing(), self._sources.state.read()
        except errors.UnavailableError as exc:
            return [self._doubt(held, exc) for held in asked]
        return [self._find(held, listing, entries, before) for held in asked]

    def _find(
        self,
        one: grant_binding.StartingIds,
        listing: pod_resources.Listing,
        entries: checkpoint_file.Entries,
        before: Mapping[str, grants.Grant],
    ) -> grant_binding.IdentifiedPod | Exception:
        try:
            pod = pod_identity.identify(one.kind, one.ids, entries, listing)
        except errors.UnavailableError as exc:
            return self._doubt(one, exc)
        return grant_binding.IdentifiedPod(one, pod, listing, entries, before)

    def _doubt(
        self, asked: grant_binding.StartingIds, exc: errors.UnavailableError
    ) -> RefusedError:
        """Return the error for a doubt; final, with an eviction, after the deadline."""
        text = f"the pod of this container is not known yet: {exc}"
        with contextlib.suppress(errors.UnavailableError):
            entries = self._sources.state.read()
            own = {
                entry.uid
                for entry in entries
                if (entry.kind, entry.ids) == (asked.kind, asked.ids)
            }
            for uid in own:
                if self._doubts.is_late(uid):
                    self._report(events.GrantEvent(uid, "", "", text, evict=True))
                    return RefusedError(text, final=True)
        return RefusedError(text, final=False)


class Doubts:
    """Since when each pod has been refused for temporary reasons."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[str, float] = {}

    def is_late(self, uid: str) -> bool:
        """Record that a pod is refused; whether it has been for too long."""
        now = self._clock()
        return now - self._since.setdefault(uid, now) > self._seconds

    def forget(self, uid: str) -> None:
        """Reset the deadline of a pod whose grants are matched."""
        self._since.pop(uid, None)

    def keep(self, uids: Container[str]) -> None:
        """Forget all pods but *uids*, which still exist."""
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}
