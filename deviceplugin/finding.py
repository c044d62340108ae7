"""Identify the pods of containers that are about to start, from kubelet's state."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin import binding, events, identity
from pyvgpu.deviceplugin.placing import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.deviceplugin import doubts, grants, podresources, state, surroundings


class Finder:
    """Queries kubelet."""

    def __init__(
        self,
        sources: surroundings.Sources,
        refused: doubts.Doubts,
        known: Callable[[], Mapping[str, grants.Grant]],
        tell: Callable[[events.Event], None],
    ) -> None:
        self._sources = sources
        self._doubts = refused
        self._known = known
        self._tell = tell

    def prepare(self) -> None:
        """Read kubelet's checkpoint in advance: it is cached, and rarely changes until needed."""
        with contextlib.suppress(errors.UnavailableError):
            self._sources.state.read()

    def find(self, asked: Sequence[binding.Held]) -> list[binding.Found | Exception]:
        """Return the pods of the containers that hold these ids; RefusedError if unclear."""
        before = self._known()
        try:
            listing, entries = self._sources.pods.listing(), self._sources.state.read()
        except errors.UnavailableError as exc:
            return [self._doubt(it, exc) for it in asked]
        return [self._find(it, listing, entries, before) for it in asked]

    def _find(
        self,
        one: binding.Held,
        listing: podresources.Listing,
        entries: state.Entries,
        before: Mapping[str, grants.Grant],
    ) -> binding.Found | Exception:
        try:
            pod = identity.identify(one.kind, one.ids, entries, listing)
        except errors.UnavailableError as exc:
            return self._doubt(one, exc)
        return binding.Found(one, pod, listing, entries, before)

    def _doubt(self, asked: binding.Held, exc: errors.UnavailableError) -> RefusedError:
        """Return the error for a doubt; final, with an eviction, after the deadline."""
        text = f"the pod of this container is not known yet: {exc}"
        with contextlib.suppress(errors.UnavailableError):
            entries = self._sources.state.read()
            own = {it.uid for it in entries if (it.kind, it.ids) == (asked.kind, asked.ids)}
            for uid in own:
                if self._doubts.is_late(uid):
                    self._tell(events.Event(uid, "", "", text, evict=True))
                    return RefusedError(text, final=True)
        return RefusedError(text, final=False)
