"""Gang scheduling: the members of a gang, its placement, and its deadline.

A gang is placed as a whole, under one lock, or holds nothing: so no two gangs can wait for each
other's devices. No pod of a gang is bound before kube-scheduler asks to bind all of them. Its
reservations expire at its deadline; pods of a gang of which others could not be bound are evicted.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.allocator import datatypes, free_capacity, pod_placement, search_budget
from pyvgpu.controller.scheduler import pod_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.controller.scheduler.node_info import NodeInfo

    Shares = Mapping[str, tuple[datatypes.NodeShare, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """The pods of a gang."""

    size: int  # pods that the gang must have
    running: tuple[pod_request.PodRequest, ...]  # bound, being bound, or succeeded
    waiting: tuple[pod_request.PodRequest, ...]  # as many as are missing, in order of precedence
    # Beyond the size of the gang: they come after the others.
    spare: tuple[pod_request.PodRequest, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether enough pods are bound."""
        return len(self.running) >= self.size

    @property
    def complete(self) -> bool:
        """Whether enough pods exist."""
        return len(self.running) + len(self.waiting) >= self.size

    @property
    def torn(self) -> bool:
        """Whether some pods were bound without others that existed already.

        A pod that was created after the others were bound replaces one that is gone. The API
        server writes whole seconds: a pod created in the same second counts as having existed,
        since a gang is often created and bound within one; it has time to be bound, too.
        """
        bound = [pod.scheduled for pod in self.running if pod.node and not pod.leaving]
        return (
            bool(bound)
            and not self.whole
            and any(pod.created <= min(bound) for pod in self.waiting)
        )


def members(pods: Iterable[pod_request.PodRequest], binding: Collection[str] = ()) -> Members:
    """Sort the known *pods* of one gang, at least one.

    *binding* are the uids of those that are being bound.
    """
    known = list(pods)
    size = max(pod.gang.size for pod in known if pod.gang)
    running = tuple(pod for pod in known if pod.node or pod.over or pod.uid in binding)
    waiting = sorted(
        (pod for pod in known if pod.waits and pod.uid not in binding),
        key=lambda pod: (-pod.priority, pod.created, pod.uid),
    )
    missing = max(0, size - len(running))
    return Members(size, running, tuple(waiting[:missing]), tuple(waiting[missing:]))


@dataclasses.dataclass(slots=True)
class Assembly:
    """A gang with reservations, while the bind requests of its pods arrive."""

    until: float  # seconds; then it is given up
    arrived: set[str] = dataclasses.field(default_factory=set)  # uids
    begun: bool = False  # all have arrived and are being bound


def plan(
    pods: Sequence[pod_request.PodRequest],
    candidates: Callable[[pod_request.PodRequest], Sequence[NodeInfo]],
    packing: Callable[[pod_request.PodRequest], datatypes.Packing],
) -> dict[str, tuple[str, Shares]] | None:
    """Return a node and shares for each of *pods*, by uid; None if not all fit.

    *candidates* returns the nodes that fit a pod, the best first. What these pods hold already
    counts as free. The largest pods choose first, each the best node that still has room.
    """
    trial = _Trial({member.uid for member in pods})
    nodes: dict[pod_request.PodShape, Iterator[NodeInfo]] = {}
    first: dict[pod_request.PodShape, NodeInfo | None] = {}
    found: dict[str, tuple[str, Shares]] = {}
    for pod in sorted(pods, key=_largest):
        if pod.shape not in nodes:
            nodes[pod.shape] = iter(candidates(pod))
            first[pod.shape] = next(nodes[pod.shape], None)
        while (info := first[pod.shape]) is not None:
            shares = trial.place(info, pod, packing(pod))
            if shares is not None:
                found[pod.uid] = info.name, shares
                break
            # A node without room for one pod of a shape has none for the next.
            first[pod.shape] = next(nodes[pod.shape], None)
        else:
            return None
    return found


def _largest(pod: pod_request.PodRequest) -> tuple[int, int, float, str]:
    vcore = sum(part.vcore for part in pod.shape.parts)
    return -vcore, -sum(part.units for part in pod.shape.parts), pod.created, pod.uid


class _Trial:
    """Nodes as they would be with the pods of a gang that are placed so far."""

    def __init__(self, uids: set[str]) -> None:
        self._uids = uids
        self._held: dict[str, tuple[datatypes.Holding, ...]] = {}
        self._budget = search_budget.SearchBudget()

    def place(
        self, info: NodeInfo, pod: pod_request.PodRequest, packing: datatypes.Packing
    ) -> Shares | None:
        """Place *pod* on a node, and count it there from now on; None if it does not fit."""
        held = self._held.get(info.name)
        if held is None:
            held = self._held[info.name] = tuple(info.held(self._uids))
        wanted = info.wanted(pod, packing)
        room = free_capacity.of(datatypes.NodeDevices(info.devices, held))
        placed = pod_placement.find(room, wanted, self._budget)
        if placed is None:
            return None
        self._held[info.name] = (
            *held,
            *pod_placement.holdings(wanted.containers, placed, pod.key),
        )
        return pod_request.named(pod, placed)
