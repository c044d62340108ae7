"""Decisions behind the extender's verbs, from the scheduler cache (cache.py).

Nothing here blocks or does I/O. The lock of the cache is held for the time of one answer.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

from pyvgpu.controller.scheduler import (
    answers,
    gang_state,
    group_state,
    index,
    other_groups,
    preemption,
    wait_reasons,
)
from pyvgpu.controller.scheduler.node_info import Certainty

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyvgpu.controller.scheduler import cache, name_lists, pod_request


# That a refused pod which the cache does not have is awaited: kube-scheduler sees new pods sooner
# than the cache, above all after an interruption, and retries such pods itself after five minutes.
UNSEEN_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Refused:
    """A pod that no node fitted."""

    pod: pod_request.PodRequest
    unseen_until: float = 0.0  # kept until then although the cache does not have it; 0: it had it


class Decider:
    """Answers from the scheduler cache."""

    def __init__(self, known: cache.Cache) -> None:
        self.cache = known
        self.moved = threading.Condition(known.lock)  # on which pods of a gang wait for the others
        self._index = index.Index(known.nodes)
        known.listen(self._index.changed)
        self._gathering = gang_state.Gathering(known, self._index)
        self._preempting = preemption.PreemptionPlanner(known, self._index)
        # These take long, and do not hold the lock all the time.
        self.preempt = self._preempting.plan
        self.spare = self._preempting.spare
        self.nominated = self._preempting.nominated
        self.in_vain = self._preempting.in_vain
        self._touched: set[str] = set()  # nodes that have changed since the last freed()
        self._refused: dict[str, _Refused] = {}  # by uid
        self._requeued: dict[str, pod_request.PodRequest] = {}  # by uid, until their next filter
        self._groups = group_state.Groups(known)
        self._yields = other_groups.Yields()
        known.listen(self._touched.add)

    def filter(
        self,
        pod: pod_request.PodRequest,
        names: Sequence[str],
        now: float,
        *,
        every_reason: bool = True,
    ) -> answers.FilterResult:
        """Return which of the nodes called *names* fit *pod*, and why the others do not.

        Without *every_reason*, reasons are given only where none fits: else they are not needed.

        If only one node fits, it is reserved for the pod for a while, since the pod will go there.
        For a pod of a gang only one ever fits, and room for its whole gang is reserved.
        """
        if pod.trouble:
            return answers.only("", names, pod.trouble)
        with self.cache.lock:
            self._expire(now)
            self._requeued.pop(pod.uid, None)
            answer = self._filtered(pod, names, now, every_reason=every_reason)
            if answer.fitting:
                self._refused.pop(pod.uid, None)
                if not every_reason:
                    answer.failed = {}
            else:
                until = now + UNSEEN_SECONDS if self.cache.seen(pod) is None else 0.0
                self._refused[pod.uid] = _Refused(pod, until)
        return answer

    def freed(self, now: float) -> list[pod_request.PodRequest]:
        """Return refused pods that may fit now, each once, by descending priority.

        And those whose victims did not terminate in time: others may be evicted for them.
        Call it after every change, and periodically.
        """
        with self.cache.lock:
            self._expire(now)
            self._groups.forget()
            touched = frozenset(self._touched)
            self._touched.clear()
            waiting: dict[str, pod_request.PodRequest] = {}
            for uid, refused in list(self._refused.items()):
                seen = self.cache.seen(refused.pod)
                if seen is not None and seen.waits:
                    waiting[uid] = seen
                    self._refused[uid] = _Refused(seen)
                elif seen is None and now < refused.unseen_until:
                    waiting[uid] = refused.pod
                else:
                    del self._refused[uid]
            fits = {
                shape: self._index.fits_one_of(shape, touched)
                for shape in {waiter.shape for waiter in waiting.values()}
            }
            owed = self._gathering.owed(now)
            late_groups = self._yields.over(now)
            late = self._preempting.overdue(now)
            found = [
                waiter
                for waiter in waiting.values()
                if (waiter.gang and waiter.gang.name in owed)
                or waiter.uid in late
                or waiter.group in late_groups
                or (fits[waiter.shape] if (own := self._kept(waiter, touched)) is None else own)
            ]
            for pod in found:
                del self._refused[pod.uid]
                self._requeued[pod.uid] = pod
        return sorted(
            found, key=lambda candidate: (-candidate.priority, candidate.created, candidate.uid)
        )

    def _kept(self, pod: pod_request.PodRequest, touched: frozenset[str]) -> bool | None:
        """Return whether the reservation of *pod* fits; None if there is none, or no change."""
        reservation = self.cache.find(pod.uid)
        if reservation is None or reservation.node not in touched:
            return None
        return answers.fits_without_itself(self.cache, pod, reservation.node)

    def _expire(self, now: float) -> None:
        """Drop expired reservations, and note the groups that did not take theirs."""
        self._yields.begin((pod.group for pod in self.cache.expire(now)), now)

    def _is_awaited(self, pod: pod_request.PodRequest) -> bool:
        """Return whether a pod outside the group of *pod* was refused, and fits now."""
        self._requeued = {
            uid: other
            for uid, other in self._requeued.items()
            if (seen := self.cache.seen(other)) is not None and seen.waits
        }
        refused = (one.pod for one in self._refused.values())
        return any(
            other.group != pod.group and self._index.results_of(other.shape).fits_any
            for other in (*refused, *self._requeued.values())
        )

    def _filtered(
        self, pod: pod_request.PodRequest, names: Sequence[str], now: float, *, every_reason: bool
    ) -> answers.FilterResult:
        if pod.gang:
            found = self._gathering.filter(pod, pod.gang, names, now)
            if found is not None:
                return found
        if pod.group and self._yields.holds(pod.group, now) and self._is_awaited(pod):
            return answers.only("", names, "gives way to other pods: its group did not fit")
        answer = answers.evaluated(self.cache, self._index, pod, names, every_reason=every_reason)
        if len(answer.fitting) == 1:
            answers.expect(self.cache, pod, answer.fitting[0], now)
        if pod.group:
            if answer.fitting:
                self._groups.accept(pod, now)
            else:
                self._groups.refuse(pod)
        return answer

    def prioritize(
        self, pod: pod_request.PodRequest, names: Sequence[str], now: float
    ) -> name_lists.Codes:
        """Return a score from 0 to 10 for each of *names*.

        The pod will probably go to the best one, so that is reserved for it for a while.
        """
        policy = pod.policy or self.cache.settings.policy
        if pod.trouble or not names:
            return bytes(len(names))
        with self.cache.lock:
            scores = self._index.score(pod.shape, policy, names)
            reservation = self.cache.find(pod.uid)
            if reservation is None or (reservation.state is Certainty.EXPECTED and not pod.gang):
                answers.expect(self.cache, pod, names[scores.index(max(scores))], now)
                if pod.group:
                    self._groups.accept(pod, now)
        return scores

    def arrive(self, pod: pod_request.PodRequest, node: str, now: float) -> float | None:
        """Note a bind request of *pod* for *node*; return None if it may be bound now.

        Otherwise the pod has to wait for its gang or group: on *moved*, at most until the returned
        time, and then call again. UnavailableError if its reservation is gone.
        """
        if not (pod.gang or pod.group):
            return None
        with self.cache.lock:
            until = None
            try:
                if pod.gang:
                    until = self._gathering.arrive(pod, pod.gang, node, now)
                else:
                    until = self._groups.arrive(pod, node, now)
            finally:
                if until is None:  # else nothing has changed for the others
                    self.moved.notify_all()
            return until

    def explain(
        self, key: str, names: Collection[str] | None = None, *, every_device: bool = False
    ) -> wait_reasons.Why | None:
        """Return why no node fits the pod namespace/name; None if there is no such pod."""
        pod = self.cache.pods.get(key)
        if pod is None:
            return None
        return wait_reasons.find(self.cache, pod, names, every_device=every_device)

    def broken(self, now: float) -> list[pod_request.PodRequest]:
        """Return the bound pods of gangs whose other pods could not be bound in time.

        Their devices are of no use to them, so they have to be evicted.
        """
        with self.cache.lock:
            return self._gathering.broken(now)
