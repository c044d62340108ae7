"""Time out preemption victims that do not terminate.

An evicted pod may take long, or never terminate: its node is down, a finalizer keeps it, its
processes hang. The preempting pod's reservation expires then; renewed with the same victims, it
would expire again and again. So a victim that outlives the reservation counts as running on, and
other victims are chosen.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.controller.scheduler import cache, pod_request


@dataclasses.dataclass(frozen=True, slots=True)
class _Wait:
    """A preempting pod and the victims that it waits for."""

    pod: pod_request.PodRequest
    node: str
    ending: Mapping[str, str]  # the victims: keys by uid
    until: float


class Lingering:
    """Tracks victims that are waited for; the caller holds the lock of the cache."""

    def __init__(self, known: cache.Cache) -> None:
        self._cache = known
        self._waits: dict[str, _Wait] = {}  # by the uid of the preempting pod
        self._nodes: dict[str, str] = {}  # of overdue victims, by uid
        self._failed: dict[
            str, tuple[pod_request.PodRequest, str]
        ] = {}  # by uid: preempting pod, message
        self._owed: set[str] = set()  # uids that overdue() has yet to return

    def uids(self, now: float) -> frozenset[str]:
        """Return the victims that are overdue by *now* and still hold their devices."""
        self._look(now)
        self._nodes = {uid: at for uid, at in self._nodes.items() if self._is_ending(uid, at)}
        return frozenset(self._nodes)

    def expect(
        self, pod: pod_request.PodRequest, node: str, uids: Iterable[str], until: float
    ) -> None:
        """Note that *pod* waits for the pods *uids* to terminate on *node*, and until when."""
        tenants = self._cache.nodes[node].tenants
        there = {uid: tenants[uid].pod.key for uid in uids if uid in tenants}
        self._waits[pod.uid] = _Wait(pod, node, there, until)

    def overdue(self, now: float) -> set[str]:
        """Return the uids of pods whose wait has timed out by *now*, each once."""
        self._look(now)
        owed, self._owed = self._owed, set()
        return owed

    def message(self, pod: pod_request.PodRequest) -> str:
        """Say for which victims *pod* has waited in vain; empty if for none."""
        _, text = self._failed.get(pod.uid, (pod, ""))
        return text

    def _look(self, now: float) -> None:
        late = [pending for pending in self._waits.values() if pending.until <= now]
        for wait in late:
            del self._waits[wait.pod.uid]
            stay = {
                uid: key for uid, key in wait.ending.items() if self._is_ending(uid, wait.node)
            }
            if stay and self._is_waiting(wait.pod):
                self._nodes |= dict.fromkeys(stay, wait.node)
                seconds, names = (
                    self._cache.settings.nomination_seconds,
                    ", ".join(sorted(stay.values())),
                )
                text = f"{names} on {wait.node} did not end within {seconds:g} s"
                self._failed[wait.pod.uid] = wait.pod, text
                self._owed.add(wait.pod.uid)
        if late:
            self._failed = {
                uid: failure
                for uid, failure in self._failed.items()
                if self._is_waiting(failure[0])
            }

    def _is_ending(self, uid: str, node: str) -> bool:
        """Tell whether a pod on *node* is being deleted and is not gone yet."""
        info = self._cache.nodes.get(node)
        reservation = info.tenants.get(uid) if info is not None else None
        return reservation is not None and reservation.pod.leaving

    def _is_waiting(self, pod: pod_request.PodRequest) -> bool:
        known = self._cache.pods.get(pod.key)
        return known is not None and known.uid == pod.uid and known.waits
