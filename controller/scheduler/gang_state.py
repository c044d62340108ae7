"""Gang state, from the first filter request to the last bind; see gangs.py.

Where a gang does not fit, kube-scheduler still asks about each of its pods, and each search takes
longer the larger the gang. So the result is reused while nothing has changed, and for a short
pause after a change: pods that were refused without a search are requeued later.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler import answers, gangs
from pyvgpu.controller.scheduler.node_info import PASSING, Certainty

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyvgpu.controller.scheduler import cache, index, pod_request
    from pyvgpu.controller.scheduler.node_info import NodeInfo


WAIT_SECONDS = 20.0  # that a bind waits for its gang; kube-scheduler's timeout is longer
PAUSE_SECONDS = 0.01  # for each pod of a gang, until the next search for room


@dataclasses.dataclass(slots=True)
class _InVain:
    """A search that found no room for a gang."""

    about: tuple[object, ...]  # the request and the state of the nodes
    until: float  # no new search before then, whatever has changed
    owed: bool = False  # a pod was refused without a search, and may fit now


class Gathering:
    """Reserves devices for gangs; the caller holds the lock of the cache."""

    def __init__(self, known: cache.Cache, made: index.Index) -> None:
        self._cache = known
        self._index = made
        self._assemblies: dict[str, gangs.Assembly] = {}
        self._torn: dict[str, float] = {}  # when a partly bound gang was first seen, by name
        self._in_vain: dict[str, _InVain] = {}

    def filter(
        self, pod: pod_request.PodRequest, gang: pod_request.Gang, names: Sequence[str], now: float
    ) -> answers.FilterResult | None:
        """Return the one node reserved for *pod*; None if its gang has enough bound pods.

        Devices are reserved for all of its gang, or for none.
        """
        found = self._members(pod, gang)
        if found.whole:
            return None
        if not found.complete or pod not in found.waiting:
            if not found.complete:
                self._give_up(gang, found.waiting)
                there = len(found.running) + len(found.waiting)
                text = f"waits for its gang: {there} of {found.size} pods are there"
            else:
                text = f"its gang has {found.size} pods already"
            return answers.FilterResult(failed={text: names} if names else {})
        node = self._node_of(pod, gang, names, now)
        if node is None and not self._is_in_vain(gang, found, names, now):
            node = self._place(found, pod, names, now)
            if node is None:
                until = now + PAUSE_SECONDS * len(found.waiting)
                self._in_vain[gang.name] = _InVain(self._about(found, names), until)
        if node is None:
            return self._refused(found, pod, names)
        return answers.only(node, names, "not the node reserved for its gang")

    def arrive(
        self, pod: pod_request.PodRequest, gang: pod_request.Gang, node: str, now: float
    ) -> float | None:
        """Note a bind request for *pod*; return until when it must wait, None if it need not."""
        found = self._members(pod, gang)
        reservation = self._cache.find(pod.uid)
        if found.whole or (reservation is not None and reservation.state is Certainty.BINDING):
            return None
        assembly = self._assembly(gang, now)
        if assembly is None or reservation is None or reservation.node != node:
            self._give_up(gang, found.waiting)
            raise errors.UnavailableError(
                f"{node} is no longer reserved for the gang of {pod.key}"
            )
        if not found.complete:
            self._give_up(gang, found.waiting)
            raise errors.UnavailableError(f"a pod of the gang of {pod.key} is gone")
        assembly.arrived.add(pod.uid)
        if all(member.uid in assembly.arrived for member in found.waiting):
            # From here on each pod is being bound, and no reservation expires.
            until = now + self._cache.settings.bind_seconds
            assembly.until = max(assembly.until, until)
            for one in found.waiting:
                kept = self._cache.find(one.uid)
                if kept is not None and kept.shares is not None:
                    self._cache.reserve(one, kept.node, now)
            return None
        return assembly.until

    def owed(self, now: float) -> set[str]:
        """Return the gangs with pods that were refused without a search and may fit now."""
        found = {
            name
            for name, failure in self._in_vain.items()
            if failure.owed and failure.until <= now
        }
        for name in found:
            self._in_vain[name].owed = False
        return found

    def broken(self, now: float) -> list[pod_request.PodRequest]:
        """Return the bound pods of gangs that have been partly bound for too long."""
        self._assemblies = {
            name: assembly for name, assembly in self._assemblies.items() if assembly.until > now
        }
        self._in_vain = {
            name: failure for name, failure in self._in_vain.items() if name in self._cache.gangs
        }
        late: list[pod_request.PodRequest] = []
        torn: dict[str, float] = {}
        for name, pods in self._cache.gangs.items():
            if not any(pod.node for pod in pods.values()) or not any(
                pod.waits for pod in pods.values()
            ):
                continue  # the case of nearly all gangs
            found = gangs.members(pods.values(), self._binding(pods.values()))
            if found.torn:
                torn[name] = self._torn.get(name, now)
                seconds = max(pod.gang.seconds for pod in pods.values() if pod.gang)
                if now - torn[name] >= seconds:
                    late += [
                        member for member in found.running if member.node and not member.leaving
                    ]
        self._torn = torn
        return late

    def _is_in_vain(
        self, gang: pod_request.Gang, found: gangs.Members, names: Sequence[str], now: float
    ) -> bool:
        """Return whether the last search still holds, or it is too early for the next."""
        before = self._in_vain.get(gang.name)
        if before is None or before.about == self._about(found, names):
            return before is not None
        if now >= before.until:
            del self._in_vain[gang.name]
            return False
        before.owed = True
        return True

    def _about(self, found: gangs.Members, names: Sequence[str]) -> tuple[object, ...]:
        return self._index.version, found.waiting, frozenset(names)  # names come in any order

    def _members(self, pod: pod_request.PodRequest, gang: pod_request.Gang) -> gangs.Members:
        """Return the pods of a gang, including *pod*, which the cache may not have yet."""
        known = {**self._cache.gangs.get(gang.name, {}), pod.uid: pod}
        return gangs.members(known.values(), self._binding(known.values()))

    def _binding(self, pods: Iterable[pod_request.PodRequest]) -> set[str]:
        reservations = (self._cache.find(pod.uid) for pod in pods)
        return {
            reservation.pod.uid
            for reservation in reservations
            if reservation is not None and reservation.state is Certainty.BINDING
        }

    def _assembly(self, gang: pod_request.Gang, now: float) -> gangs.Assembly | None:
        assembly = self._assemblies.get(gang.name)
        if assembly is not None and assembly.until <= now:
            del self._assemblies[gang.name]
            return None
        return assembly

    def _node_of(
        self, pod: pod_request.PodRequest, gang: pod_request.Gang, names: Sequence[str], now: float
    ) -> str | None:
        """Return the node reserved for *pod*, if it is one of *names*."""
        reservation = self._cache.find(pod.uid)
        kept = reservation is not None and reservation.state is Certainty.EXPECTED
        if self._assembly(gang, now) is None or not kept or reservation is None:
            return None
        return reservation.node if reservation.node in names else None

    def _place(
        self, found: gangs.Members, pod: pod_request.PodRequest, names: Sequence[str], now: float
    ) -> str | None:
        """Reserve room for all pods whose bind has not arrived; return the node of *pod*."""
        gang = pod.gang
        assert gang is not None  # noqa: S101
        assembly = self._assembly(gang, now) or gangs.Assembly(now + gang.seconds)
        moving = [
            member
            for member in found.waiting
            if member.uid not in assembly.arrived or member == pod
        ]
        own = {it.node for one in moving if (it := self._cache.find(one.uid)) is not None}

        def candidates(one: pod_request.PodRequest) -> list[NodeInfo]:
            fits = self._index.results_of(one.shape).fits
            fitting = [node_name for node_name in names if fits(node_name) or node_name in own]
            policy = one.policy or self._cache.settings.policy
            scores = self._index.score(one.shape, policy, fitting)
            ordered = sorted(
                zip(fitting, scores, strict=True), key=lambda scored: (-scored[1], scored[0])
            )
            return [self._cache.nodes[name] for name, _ in ordered]

        placed = gangs.plan(moving, candidates, self._cache.settings.packing)
        if placed is None:
            self._give_up(gang, found.waiting)
            return None
        self._assemblies[gang.name] = assembly
        for one in moving:
            node, shares = placed[one.uid]
            reservation = self._cache.build_reservation(
                one, node, shares, Certainty.EXPECTED, assembly.until
            )
            self._cache.store_expiring(reservation)
        return placed[pod.uid][0]

    def _refused(
        self, found: gangs.Members, pod: pod_request.PodRequest, names: Sequence[str]
    ) -> answers.FilterResult:
        answer = answers.evaluated(self._cache, self._index, pod, names)
        fitting, answer.fitting = answer.fitting, []
        answer.refuse(fitting, f"room for this pod, but not for its whole gang of {found.size}")
        return answer

    def _give_up(self, gang: pod_request.Gang, waiting: Iterable[pod_request.PodRequest]) -> None:
        """Drop the reservations of a gang."""
        self._assemblies.pop(gang.name, None)
        for pod in waiting:
            reservation = self._cache.find(pod.uid)
            if reservation is not None and reservation.state in PASSING:
                self._cache.release(pod.uid)
