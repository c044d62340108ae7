"""Answers of filter, and how one is found for a pod without a gang."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler.node_info import PASSING, Certainty

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pyvgpu.controller.scheduler import cache, index, pod_request


@dataclasses.dataclass(slots=True)
class FilterResult:
    """The requested nodes that fit, and the others by reason."""

    fitting: Sequence[str] = dataclasses.field(default_factory=list)
    failed: dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)  # by reason

    def refuse(self, names: Iterable[str], text: str) -> None:
        """Refuse the nodes called *names*."""
        refused = list(names)
        if refused:
            self.failed[text] = [*self.failed.get(text, ()), *refused]


def evaluated(
    known: cache.Cache,
    made: index.Index,
    pod: pod_request.PodRequest,
    names: Sequence[str],
    *,
    every_reason: bool = True,
) -> FilterResult:
    """Return which of the nodes called *names* fit *pod*.

    Without *every_reason*, reasons are left out where any node fits.
    """
    reservation = known.find(pod.uid)
    if reservation is not None and reservation.state not in PASSING:
        # It may be bound there already, unknown to us: no other node is possible.
        return only(reservation.node, names, f"not {reservation.node}, to which it is being bound")
    fitting, refusing = made.results_of(pod.shape).split(names, every_reason=every_reason)
    answer = FilterResult(fitting, {why.value: refused for why, refused in refusing.items()})
    if reservation is not None and reservation.node in names and reservation.node not in fitting:
        _let(answer, known, pod, reservation.node)
    return answer


def _let(answer: FilterResult, known: cache.Cache, pod: pod_request.PodRequest, node: str) -> None:
    """Accept a refused node if the reservation of *pod* there suffices."""
    if fits_without_itself(known, pod, node):
        answer.fitting = [*answer.fitting, node]
        without = {
            why: [name for name in names if name != node] for why, names in answer.failed.items()
        }
        answer.failed = {why: names for why, names in without.items() if names}


def only(node: str, names: Collection[str], text: str) -> FilterResult:
    """Accept *node* alone, if it was asked about; *text* refuses the others."""
    answer = FilterResult([node] if node in names else [])
    answer.refuse((name for name in names if name != node), text)
    return answer


def expect(known: cache.Cache, pod: pod_request.PodRequest, node: str, now: float) -> None:
    """Reserve on *node* what *pod* would get there, for a while; nothing if it does not fit."""
    try:
        shares = known.choose_devices(pod, node)
    except errors.UnavailableError:
        return
    until = now + known.settings.expect_seconds
    before = known.find(pod.uid)
    if pod.group and before is not None and before.state is Certainty.EXPECTED:
        until = before.until  # so that it ends, however often its group is tried
    known.store_expiring(known.build_reservation(pod, node, shares, Certainty.EXPECTED, until))


def fits_without_itself(known: cache.Cache, pod: pod_request.PodRequest, node: str) -> bool:
    """Return whether a pod fits on *node* if its own reservation counts as free."""
    try:
        known.choose_devices(pod, node)
    except errors.UnavailableError:
        return False
    return True
