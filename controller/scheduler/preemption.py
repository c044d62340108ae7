"""Preemption: choose victims, and reserve what they free for the preempting pod; see victims.py.

kube-scheduler itself sees only a node's totals. Where those are short, it chooses victims and
asks whether they suffice. Where the totals suffice but no single device does, it would not
preempt at all, so we do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler import victims
from pyvgpu.controller.scheduler.node_info import Certainty

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyvgpu.controller.scheduler import cache, index, pod_request
    from pyvgpu.controller.scheduler.node_info import NodeInfo

MOST_PLANS = 100  # to compare, like kube-scheduler


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """An answer to kube-scheduler, which has yet to choose a node."""

    until: float
    going: Mapping[str, tuple[str, ...]]  # uids of the victims, by node


@dataclasses.dataclass(frozen=True, slots=True)
class _Wait:
    """A preempting pod and the victims that it waits for."""

    pod: pod_request.PodRequest
    node: str
    ending: Mapping[str, str]  # the victims: keys by uid
    until: float


class VictimTimeouts:
    """Times out victims that do not terminate; the caller holds the lock of the cache.

    An evicted pod may take long, or never terminate: its node is down, a finalizer keeps it, its
    processes hang. The preempting pod's reservation expires then; renewed with the same victims,
    it would expire again and again. So a victim that outlives the reservation counts as running
    on, and other victims are chosen.
    """

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
        self._drop_expired(now)
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
        self._drop_expired(now)
        owed, self._owed = self._owed, set()
        return owed

    def message(self, pod: pod_request.PodRequest) -> str:
        """Say for which victims *pod* has waited in vain; empty if for none."""
        _, text = self._failed.get(pod.uid, (pod, ""))
        return text

    def _drop_expired(self, now: float) -> None:
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
        """Return whether a pod on *node* is being deleted and is not gone yet."""
        info = self._cache.nodes.get(node)
        reservation = info.tenants.get(uid) if info is not None else None
        return reservation is not None and reservation.pod.leaving

    def _is_waiting(self, pod: pod_request.PodRequest) -> bool:
        seen = self._cache.seen(pod)
        return seen is not None and seen.waits


class PreemptionPlanner:
    """Finds victims in the cache."""

    def __init__(self, known: cache.Cache, made: index.Index) -> None:
        self._cache = known
        self._index = made
        self._timeouts = VictimTimeouts(known)
        self._proposals: dict[str, Proposal] = {}  # by the uid of the preempting pod

    def plan(
        self,
        pod: pod_request.PodRequest,
        names: Collection[str],
        budgets: victims.Budgets,
        now: float,
    ) -> victims.PreemptionPlan | None:
        """Return the victims for *pod* on one of the nodes *names*, and reserve what they free.

        None if no victims would help, or *pod* holds or reserves devices already.
        """
        infos = self._helpful(pod, names)
        with self._cache.lock:
            sober = dataclasses.replace(budgets, overdue=self._timeouts.uids(now))
        best = self._best(infos, pod, sober)
        if best is None and sober.overdue:
            # They may terminate after all; no other pod is evicted in the hope of that.
            sober, best = budgets, self._best(infos, pod, budgets)
            if best is not None and best.victims:
                return None
        if best is None:
            return None
        with self._cache.lock:  # it may have changed since
            again = self._choose(self._cache.nodes.get(best.node), pod, sober)
            if again is not None:
                self._nominate(pod, again, now)
            return again

    def overdue(self, now: float) -> set[str]:
        """Return the uids of pods whose victims did not terminate in time, each once."""
        return self._timeouts.overdue(now)

    def in_vain(self, pod: pod_request.PodRequest) -> str:
        """Say for which victims *pod* has waited in vain; empty if for none."""
        with self._cache.lock:
            return self._timeouts.message(pod)

    def spare(
        self,
        pod: pod_request.PodRequest,
        proposed: Mapping[str, Sequence[str]],
        budgets: victims.Budgets,
        now: float,
    ) -> dict[str, tuple[str, ...]]:
        """Return the nodes where *pod* fits once the *proposed* victims, by uid, are gone.

        Where they alone would free no device, more are added; nodes that do not help are left out.
        """
        going: dict[str, tuple[str, ...]] = {}
        with self._cache.lock:
            budgets = dataclasses.replace(budgets, overdue=self._timeouts.uids(now))
            for name, uids in proposed.items():
                info = self._cache.nodes.get(name)
                plan = self._choose(info, pod, budgets, uids)
                if plan is not None:
                    going[name] = (*uids, *(victim.uid for victim in plan.victims))
            until = now + self._cache.settings.nomination_seconds
            self._proposals = {
                uid: proposal for uid, proposal in self._proposals.items() if proposal.until > now
            }
            self._proposals[pod.uid] = Proposal(until, going)
        return going

    def nominated(self, pod: pod_request.PodRequest, now: float) -> bool:
        """Claim for *pod* what is being freed on its nominated node; return whether it worked."""
        with self._cache.lock:
            proposal = self._proposals.get(pod.uid)
            if not pod.nominated or not pod.waits or proposal is None or proposal.until <= now:
                return False
            info = self._cache.nodes.get(pod.nominated)
            going = proposal.going.get(pod.nominated)
            if info is None or going is None or self._has_something(pod):
                return False
            plan = self._choose(info, pod, victims.NO_BUDGETS, going)
            if plan is not None:
                del self._proposals[pod.uid]
                self._nominate(pod, plan, now)
            return plan is not None

    def _best(
        self, infos: Iterable[NodeInfo], pod: pod_request.PodRequest, budgets: victims.Budgets
    ) -> victims.PreemptionPlan | None:
        """Return the cheapest of the first MOST_PLANS plans."""
        best = None
        found = 0
        for info in infos:
            with self._cache.lock:
                plan = self._choose(info, pod, budgets)
            if plan is None:
                continue
            found += 1
            if best is None or plan.cost < best.cost:
                best = plan
            if found == MOST_PLANS:
                break
        return best

    def _helpful(self, pod: pod_request.PodRequest, names: Collection[str]) -> Sequence[NodeInfo]:
        """Return the nodes where evicting pods could help."""
        if not pod.preempts or pod.trouble or pod.gang:
            return ()
        with self._cache.lock:
            if self._has_something(pod):
                return ()
            known = self._index.results_of(pod.shape)
            return [
                self._cache.nodes[name]
                for name in names
                if (why := known.why(name)) is not None and why.passes
            ]

    def _has_something(self, pod: pod_request.PodRequest) -> bool:
        """Return whether *pod* holds devices already, or reserves some."""
        reservation = self._cache.find(pod.uid)
        return reservation is not None and reservation.state is not Certainty.EXPECTED

    def _choose(
        self,
        info: NodeInfo | None,
        pod: pod_request.PodRequest,
        budgets: victims.Budgets,
        going: Collection[str] = (),
    ) -> victims.PreemptionPlan | None:
        if info is None or not info.unit or pod.trouble:
            return None
        try:
            return victims.choose(info, pod, self._cache.settings.packing(pod), budgets, going)
        except errors.UsageError:  # invalid in this node's units
            return None

    def _nominate(
        self, pod: pod_request.PodRequest, plan: victims.PreemptionPlan, now: float
    ) -> None:
        until = now + self._cache.settings.nomination_seconds
        reservation = self._cache.build_reservation(
            pod, plan.node, plan.shares, Certainty.NOMINATED, until
        )
        self._cache.store_expiring(reservation)
        self._timeouts.expect(pod, plan.node, plan.ending, until)
