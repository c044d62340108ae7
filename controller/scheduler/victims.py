"""Choose preemption victims on one node for a pod of higher priority.

They are of the lowest priority that suffices, the fewest of those, and the youngest. The search
goes device by device, since a share cannot be split between devices: where 60 of each of two
devices are in use and 50 are requested, one pod is evicted, not both.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from pyvgpu.allocator import datatypes, pod_placement, search_budget
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.scheduler.node_info import Certainty

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.controller.scheduler.node_info import NodeInfo

MOST_TRIES = (
    2000  # sets of pods, times the containers to place; then a set that is good enough will do
)


def _in_no_budget(_pod: pod_request.PodRequest) -> Collection[str]:
    return ()


@dataclasses.dataclass(frozen=True, slots=True)
class Budgets:
    """Pods that must not be evicted, by PodDisruptionBudgets, or that fail to terminate."""

    of: Callable[[pod_request.PodRequest], Collection[str]] = (
        _in_no_budget  # the budgets that select a pod
    )
    allowed: Mapping[str, int] = dataclasses.field(default_factory=dict)  # by budget
    protected: frozenset[str] = frozenset()  # uids never to evict, whatever the budgets
    overdue: frozenset[str] = frozenset()  # uids of victims that overstay

    def permit(self, pods: Iterable[pod_request.PodRequest]) -> bool:
        """Return whether all of *pods* may be evicted."""
        left = dict(self.allowed)
        for pod in pods:
            if pod.uid in self.protected:
                return False
            for budget in self.of(pod):
                left[budget] = left.get(budget, 0) - 1
                if left[budget] < 0:
                    return False
        return True


NO_BUDGETS = Budgets()


@dataclasses.dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """A pod's node, shares and victims; without any, enough pods are terminating already."""

    node: str
    victims: tuple[pod_request.PodRequest, ...]
    ending: frozenset[str]  # uids of the victims, and of pods that terminate anyway
    shares: Mapping[str, tuple[datatypes.NodeShare, ...]]

    @property
    def cost(self) -> tuple[int, int, int, float]:
        """The cost of the evictions; less is better."""
        return _cost(self.victims)


def choose(
    info: NodeInfo,
    pod: pod_request.PodRequest,
    packing: datatypes.Packing,
    budgets: Budgets = NO_BUDGETS,
    going: Collection[str] = (),
) -> PreemptionPlan | None:
    """Return the victims on a node for *pod*; None if evicting pods of lower priority is no help.

    *going* are the uids of pods that will terminate anyway.
    """
    wanted = info.wanted(pod, packing)
    leaving = (uid for uid, tenant in info.tenants.items() if tenant.pod.leaving)
    ending = {pod.uid, *({*going, *leaving} - budgets.overdue)}
    never = ending | budgets.overdue
    may = [
        tenant.pod
        for uid, tenant in info.tenants.items()
        if tenant.state is Certainty.BOUND
        and tenant.pod.priority < pod.priority
        and uid not in never
        and budgets.permit([tenant.pod])
    ]
    found = _fewest(info, wanted, ending, may, budgets)
    if found is None:
        return None
    ending |= {victim.uid for victim in found}
    placed = pod_placement.find(info.without(ending), wanted)
    if placed is None:
        return None
    return PreemptionPlan(
        info.name, found, frozenset(ending - {pod.uid}), pod_request.named(pod, placed)
    )


def _fewest(
    info: NodeInfo,
    wanted: datatypes.Pod,
    ending: set[str],
    may: Sequence[pod_request.PodRequest],
    budgets: Budgets,
) -> tuple[pod_request.PodRequest, ...] | None:
    budget = search_budget.SearchBudget()

    def fits(victims: Iterable[pod_request.PodRequest]) -> bool:
        return pod_placement.fits(
            info.without(ending | {victim.uid for victim in victims}), wanted, budget
        )

    if fits(()):
        return ()
    if not fits(may):
        return None
    tries = 0
    for level in sorted({pod.priority for pod in may}):
        pool = [pod for pod in may if pod.priority <= level]
        if not fits(pool):
            continue
        for size in range(1, len(pool) + 1):
            good: list[tuple[pod_request.PodRequest, ...]] = []
            for victims in _sets(info, wanted, pool, size):
                tries += len(wanted.containers)  # the time for one set grows with them
                if tries > MOST_TRIES:
                    break
                if budgets.permit(victims) and fits(victims):
                    good.append(victims)
            if good:
                return min(good, key=_cost)
            if tries > MOST_TRIES:
                break
        if tries > MOST_TRIES and budgets.permit(greedy := _spared(pool, fits)):
            return greedy
    return None


def _sets(
    info: NodeInfo, wanted: datatypes.Pod, pool: Sequence[pod_request.PodRequest], size: int
) -> Iterator[tuple[pod_request.PodRequest, ...]]:
    """Yield sets of *size* pods; where one device is requested, of pods that share one."""
    if len(wanted.containers) > 1 or wanted.containers[0].need.count > 1:
        yield from itertools.combinations(pool, size)
        return
    there: dict[str, list[pod_request.PodRequest]] = {}
    for pod in pool:
        for holding in info.held_by(pod.uid):
            there.setdefault(holding.share.uuid, []).append(pod)
    for pods in there.values():
        yield from itertools.combinations(pods, size)


def _spared(
    pool: Sequence[pod_request.PodRequest],
    fits: Callable[[Iterable[pod_request.PodRequest]], bool],
) -> tuple[pod_request.PodRequest, ...]:
    """Return the victims that remain after sparing pods one by one while the rest suffices."""
    victims = list(pool)
    for pod in sorted(pool, key=lambda candidate: (-candidate.priority, candidate.created)):
        rest = [victim for victim in victims if victim is not pod]
        if fits(rest):
            victims = rest
    return tuple(victims)


def _cost(victims: Sequence[pod_request.PodRequest]) -> tuple[int, int, int, float]:
    priorities = [victim.priority for victim in victims]
    oldest = min((victim.created for victim in victims), default=0.0)
    return max(priorities, default=-(1 << 31)), len(victims), sum(priorities), -oldest
