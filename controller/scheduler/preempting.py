"""Makes room for pods of higher priority: who ends, and for whom it is kept; see victims.py.

The scheduler itself looks at the sums of a node alone. Where those are short it chooses victims
and asks whether they will do. Where the sums are enough and no single device is, it would not
preempt at all, and so we do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler import lingering, victims
from pyvgpu.controller.scheduler.stands import State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyvgpu.controller.scheduler import asks, book, index
    from pyvgpu.controller.scheduler.stands import Stand

MOST_PLANS = 100  # that are compared, as kube-scheduler does


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """What was answered to the scheduler, which has yet to choose a node."""

    until: float
    going: Mapping[str, tuple[str, ...]]  # uids, by node


class Preempting:
    """Finds victims in a book."""

    def __init__(self, known: book.Book, made: index.Index) -> None:
        self._book = known
        self._index = made
        self._lingering = lingering.Lingering(known)
        self._proposals: dict[str, Proposal] = {}  # by the uid of the pod that they are for

    def plan(
        self, pod: asks.Pod, names: Collection[str], budgets: victims.Budgets, now: float
    ) -> victims.Plan | None:
        """Return who has to end for *pod* on one of *names*, and keep what that frees for it.

        None if nothing would help, or something has been done for it already.
        """
        stands = self._helpful(pod, names)
        with self._book.lock:
            sober = dataclasses.replace(budgets, lingering=self._lingering.uids(now))
        best = self._best(stands, pod, sober)
        if best is None and sober.lingering:
            # They may end after all; nobody else goes in the hope of that.
            sober, best = budgets, self._best(stands, pod, budgets)
            if best is not None and best.victims:
                return None
        if best is None:
            return None
        with self._book.lock:  # it may have changed since
            again = self._choose(self._book.stands.get(best.node), pod, sober)
            if again is not None:
                self._claim(pod, again, now)
            return again

    def overdue(self, now: float) -> set[str]:
        """Return the uids of pods that have waited in vain for others to end, each once."""
        return self._lingering.overdue(now)

    def in_vain(self, pod: asks.Pod) -> str:
        """Say for whom *pod* has waited in vain; empty: for nobody."""
        with self._book.lock:
            return self._lingering.told(pod)

    def spare(
        self,
        pod: asks.Pod,
        proposed: Mapping[str, Sequence[str]],
        budgets: victims.Budgets,
        now: float,
    ) -> dict[str, tuple[str, ...]]:
        """Return on which of the nodes *pod* fits when those *proposed*, by uid, have ended.

        Where they alone would free no device, more are added; nodes that do not help are left out.
        """
        going: dict[str, tuple[str, ...]] = {}
        with self._book.lock:
            budgets = dataclasses.replace(budgets, lingering=self._lingering.uids(now))
            for name, uids in proposed.items():
                stand = self._book.stands.get(name)
                plan = self._choose(stand, pod, budgets, uids)
                if plan is not None:
                    going[name] = (*uids, *(it.uid for it in plan.victims))
            until = now + self._book.settings.claim_seconds
            self._proposals = {uid: it for uid, it in self._proposals.items() if it.until > now}
            self._proposals[pod.uid] = Proposal(until, going)
        return going

    def nominated(self, pod: asks.Pod, now: float) -> bool:
        """Keep for *pod* what is being freed on the node for which it is nominated; whether so."""
        with self._book.lock:
            proposal = self._proposals.get(pod.uid)
            if not pod.nominated or not pod.waits or proposal is None or proposal.until <= now:
                return False
            stand = self._book.stands.get(pod.nominated)
            going = proposal.going.get(pod.nominated)
            if stand is None or going is None or self._has_something(pod):
                return False
            plan = self._choose(stand, pod, victims.NO_BUDGETS, going)
            if plan is not None:
                del self._proposals[pod.uid]
                self._claim(pod, plan, now)
            return plan is not None

    def _best(
        self, stands: Iterable[Stand], pod: asks.Pod, budgets: victims.Budgets
    ) -> victims.Plan | None:
        """Return the plan that costs least, of as many as are compared."""
        best = None
        found = 0
        for stand in stands:
            with self._book.lock:
                plan = self._choose(stand, pod, budgets)
            if plan is None:
                continue
            found += 1
            if best is None or plan.cost < best.cost:
                best = plan
            if found == MOST_PLANS:
                break
        return best

    def _helpful(self, pod: asks.Pod, names: Collection[str]) -> Sequence[Stand]:
        """Return the nodes where it would help if somebody ended."""
        if not pod.preempts or pod.trouble or pod.gang:
            return ()
        with self._book.lock:
            if self._has_something(pod):
                return ()
            known = self._index.look(pod.shape)
            return [
                self._book.stands[name]
                for name in names
                if (why := known.why(name)) is not None and why.passes
            ]

    def _has_something(self, pod: asks.Pod) -> bool:
        """Tell whether *pod* has, or waits for, something already."""
        promise = self._book.find(pod.uid)
        return promise is not None and promise.state is not State.EXPECTED

    def _choose(
        self,
        stand: Stand | None,
        pod: asks.Pod,
        budgets: victims.Budgets,
        going: Collection[str] = (),
    ) -> victims.Plan | None:
        if stand is None or not stand.unit or pod.trouble:
            return None
        try:
            return victims.choose(stand, pod, self._book.settings.packing(pod), budgets, going)
        except errors.UsageError:  # means nothing in this node's units
            return None

    def _claim(self, pod: asks.Pod, plan: victims.Plan, now: float) -> None:
        until = now + self._book.settings.claim_seconds
        promised = self._book.promised(pod, plan.node, plan.shares, State.CLAIMED, until)
        self._book.promise(promised)
        self._lingering.expect(pod, plan.node, plan.ending, until)
