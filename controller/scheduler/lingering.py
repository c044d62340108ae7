"""Who was to end for another's sake, and does not: for how long one counts on it.

Whoever is told to go may take its time, and may never go: its node is down, a finalizer keeps it,
its processes hang. What is kept for the pod that waits ends then, and if it was begun anew with
the same victims, nothing would ever come of it. So who has not ended in that time is as if nobody
had told it to, and others are looked for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.controller.scheduler import asks, book


@dataclasses.dataclass(frozen=True, slots=True)
class _Wait:
    """For whose end a pod waits."""

    pod: asks.Pod
    node: str
    ending: Mapping[str, str]  # those that are to end: keys by uid
    until: float


class Lingering:
    """Remembers who is waited for; the lock of the book is held by who calls."""

    def __init__(self, known: book.Book) -> None:
        self._book = known
        self._waits: dict[str, _Wait] = {}  # by the uid of the pod that waits
        self._nodes: dict[str, str] = {}  # of those that have not ended, by uid
        self._told: dict[str, tuple[asks.Pod, str]] = {}  # by uid: who has waited, for whom
        self._owed: set[str] = set()  # uids of those of which nobody was told yet

    def uids(self, now: float) -> frozenset[str]:
        """Return those that were to end by *now*, and still have what they had."""
        self._look(now)
        self._nodes = {uid: at for uid, at in self._nodes.items() if self._is_ending(uid, at)}
        return frozenset(self._nodes)

    def expect(self, pod: asks.Pod, node: str, uids: Iterable[str], until: float) -> None:
        """Note that *pod* waits for those called *uids* to end on *node*, and until when."""
        tenants = self._book.stands[node].tenants
        there = {uid: tenants[uid].pod.key for uid in uids if uid in tenants}
        self._waits[pod.uid] = _Wait(pod, node, there, until)

    def overdue(self, now: float) -> set[str]:
        """Return the uids of pods that have waited in vain by *now*, each once."""
        self._look(now)
        owed, self._owed = self._owed, set()
        return owed

    def told(self, pod: asks.Pod) -> str:
        """Say for whom *pod* has waited in vain; empty: for nobody."""
        _, text = self._told.get(pod.uid, (pod, ""))
        return text

    def _look(self, now: float) -> None:
        late = [it for it in self._waits.values() if it.until <= now]
        for wait in late:
            del self._waits[wait.pod.uid]
            stay = {it: key for it, key in wait.ending.items() if self._is_ending(it, wait.node)}
            if stay and self._is_waiting(wait.pod):
                self._nodes |= dict.fromkeys(stay, wait.node)
                seconds, names = (
                    self._book.settings.claim_seconds,
                    ", ".join(sorted(stay.values())),
                )
                text = f"has waited {seconds:g} s in vain for {names} on {wait.node} to end"
                self._told[wait.pod.uid] = wait.pod, text
                self._owed.add(wait.pod.uid)
        if late:
            self._told = {uid: it for uid, it in self._told.items() if self._is_waiting(it[0])}

    def _is_ending(self, uid: str, node: str) -> bool:
        """Tell whether a pod is still there that was told to go."""
        stand = self._book.stands.get(node)
        promise = stand.tenants.get(uid) if stand is not None else None
        return promise is not None and promise.pod.leaving

    def _is_waiting(self, pod: asks.Pod) -> bool:
        known = self._book.pods.get(pod.key)
        return known is not None and known.uid == pod.uid and known.waits
