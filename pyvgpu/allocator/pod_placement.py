"""Place the containers of a pod on devices: all of them, or none, with the reasons.

Containers that never run concurrently may use the same share of a device, as kubelet reuses their
device ids; on each device the peak of concurrent containers counts. The policy decides the order
in which devices are tried; it does not affect whether a placement exists.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from pyvgpu.allocator import (
    codes,
    datatypes,
    free_capacity,
    mig_search,
    nearness,
    placement_explanation,
    requests,
    search_budget,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def place(
    node: datatypes.NodeDevices, pod: datatypes.Pod
) -> dict[str, tuple[datatypes.NodeShare, ...]]:
    """Return the shares by container name; placement_explanation.Refused if it does not fit."""
    placed = find(free_capacity.of(node), pod)
    if placed is None:
        raise placement_explanation.Refused(placement_explanation.reasons(node, pod))
    return placed


def find(
    free: Sequence[free_capacity.FreeCapacity],
    pod: datatypes.Pod,
    budget: search_budget.SearchBudget | None = None,
) -> dict[str, tuple[datatypes.NodeShare, ...]] | None:
    """Like :func:`place`, without reasons; *budget* is shared by several searches."""
    if pod.selector.mig:
        return mig_search.find(free, pod, budget or search_budget.SearchBudget())
    search = _Search(free, pod, budget or search_budget.SearchBudget())
    return search.shares() if search.run() else None


def fits(
    free: Sequence[free_capacity.FreeCapacity],
    pod: datatypes.Pod,
    budget: search_budget.SearchBudget | None = None,
) -> bool:
    """Return whether :func:`find` would succeed, mostly without the search for the best place."""
    if free_capacity.numbers(1, free).evaluate(free_capacity.asked(pod)) != codes.FITS:
        return False
    return is_by_count(pod) or find(free, pod, budget) is not None


def is_by_count(pod: datatypes.Pod) -> bool:
    """Return whether a pod fits wherever enough devices have room for its only container."""
    return (
        len(pod.containers) == 1
        and not pod.selector.mig
        and (pod.containers[0].need.count == 1 or pod.nearness is datatypes.Nearness.PREFERRED)
    )


def holdings(
    containers: Sequence[datatypes.Container],
    shares: Mapping[str, Sequence[datatypes.NodeShare]],
    holder: str,
) -> tuple[datatypes.Holding, ...]:
    """Return the holdings of a pod with these *shares*: its peak on each device.

    Each MIG instance is held for itself, until the pod ends.
    """
    if any(share.mig for own in shares.values() for share in own):
        return tuple(
            datatypes.Holding(share, holder)
            for container in containers
            for share in shares.get(container.name, ())
        )
    return tuple(
        datatypes.Holding(datatypes.NodeShare(uuid, vcore, vmemory), holder)
        for uuid, (vcore, vmemory) in _peaks(containers, shares).items()
    )


def _peaks(
    containers: Sequence[datatypes.Container], shares: Mapping[str, Sequence[datatypes.NodeShare]]
) -> dict[str, tuple[int, int]]:
    """Return the peak vcore and bytes of concurrent containers on each device."""
    most: dict[str, tuple[int, int]] = {}
    for phase in requests.phases(containers):
        now: dict[str, tuple[int, int]] = {}
        for share in itertools.chain.from_iterable(shares.get(name, ()) for name in phase):
            vcore, vmemory = now.get(share.uuid, (0, 0))
            now[share.uuid] = vcore + share.vcore, vmemory + share.vmemory
        for uuid, (vcore, vmemory) in now.items():
            before = most.get(uuid, (0, 0))
            most[uuid] = max(before[0], vcore), max(before[1], vmemory)
    return most


def problem(
    node: datatypes.NodeDevices,
    pod: datatypes.Pod,
    shares: Mapping[str, Sequence[datatypes.NodeShare]],
) -> str:
    """Return why *shares*, chosen for *pod* by another component, are not valid, or nothing."""
    if pod.selector.mig or any(share.mig for own in shares.values() for share in own):
        return mig_search.problem(free_capacity.of(node), pod, shares)
    for container in pod.containers:
        wrong = _mismatch(node, container, shares.get(container.name, ()))
        if wrong:
            return f"{container.name}: {wrong}"
    peaks = _peaks(pod.containers, shares)
    for room in free_capacity.of(node):
        vcore, vmemory = peaks.get(room.device.uuid, (0, 0))
        if not vcore:
            continue
        wrong = free_capacity.unfit(room.device, pod.selector)
        if not wrong and (vcore > room.vcore or vmemory > room.vmemory):
            wrong = f"has {room.text} free, {free_capacity.text_of(vcore, vmemory)} were chosen"
        if wrong:
            return f"{room.device.label} {wrong}"
    return ""


def _mismatch(
    node: datatypes.NodeDevices,
    container: datatypes.Container,
    shares: Sequence[datatypes.NodeShare],
) -> str:
    """Return how *shares* differ from what *container* requests."""
    need = container.need
    sizes = {device.uuid: device.memory_bytes for device in node.devices}
    if len({share.uuid for share in shares}) != need.count or len(shares) != need.count:
        return f"asks for {need.count} devices, {len(shares)} were chosen"
    for share in shares:
        if share.uuid not in sizes:
            return f"{share.uuid} is not a device of this node"
        wanted = sizes[share.uuid] if need.whole else need.vmemory
        if (share.vcore, share.vmemory) != (need.vcore, wanted):
            asked = free_capacity.text_of(need.vcore, wanted)
            chosen = free_capacity.text_of(share.vcore, share.vmemory)
            return f"asks for {asked}, {chosen} were chosen"
    return ""


@dataclasses.dataclass(slots=True)
class _FreeParts:
    """What is left of one device in each phase of the pod."""

    vcore: list[int]
    vmemory: list[int]
    whole: list[bool]  # no container uses it in this phase


class _Search:
    """Backtracking search: tries devices for one container after the other."""

    def __init__(
        self,
        free: Sequence[free_capacity.FreeCapacity],
        pod: datatypes.Pod,
        budget: search_budget.SearchBudget,
    ) -> None:
        self._pod = pod
        self._budget = budget
        # Keep full devices, so that a node's nearness table is cached.
        self._rooms = [room for room in free if not free_capacity.unfit(room.device, pod.selector)]
        named = {container.name: container for container in pod.containers}
        phases = [phase for phase in requests.phases(pod.containers) if phase]
        self._phases = {
            name: tuple(i for i, phase in enumerate(phases) if name in phase) for name in named
        }
        count = len(phases)
        self._left = [
            _FreeParts([room.vcore] * count, [room.vmemory] * count, [room.untouched] * count)
            for room in self._rooms
        ]
        # App containers and sidecars first, the largest ones first; init containers reuse theirs.
        self._order = sorted(
            pod.containers,
            key=lambda one: (
                one.kind is datatypes.ContainerKind.INIT,
                -one.need.count,
                -one.need.vcore,
                -one.need.vmemory,
            ),
        )
        self._alike = all(container.need.count == 1 for container in pod.containers)
        self._chosen: dict[str, tuple[int, ...]] = {}
        self._steps = 0  # since the first backtracking
        self._back = False  # whether it has backtracked

    def run(self) -> bool:
        """Search for a placement; return whether there is one."""
        if not all(map(self._may_be_near, self._order)):
            return False
        most = self._budget.steps
        found = self._place(0, most)
        self._budget.left -= self._steps
        return found

    def shares(self) -> dict[str, tuple[datatypes.NodeShare, ...]]:
        """Return the shares that were found, by container; devices in the order of the node."""
        return {
            container.name: tuple(
                self._share(container.need, position)
                for position in sorted(self._chosen[container.name])
            )
            for container in self._pod.containers
        }

    def _share(self, need: datatypes.ContainerNeed, position: int) -> datatypes.NodeShare:
        device = self._rooms[position].device
        size = device.memory_bytes if need.whole else need.vmemory
        return datatypes.NodeShare(device.uuid, need.vcore, size)

    def _place(self, at: int, most: int) -> bool:
        if at == len(self._order):
            return True
        container = self._order[at]
        tried = set()
        for chosen in self._choices(container):
            if self._alike:
                state = self._state(chosen[0])
                if state in tried:  # an equal one has failed
                    continue
                tried.add(state)
            self._steps += self._back
            if self._steps > most:
                return False
            before = self._take(container, chosen)
            self._chosen[container.name] = chosen
            if self._place(at + 1, most):
                return True
            self._back = True
            for position, left in zip(chosen, before, strict=True):
                self._left[position] = left
        return False

    def _state(self, position: int) -> tuple[object, ...]:
        left, device = self._left[position], self._rooms[position].device
        return *left.vcore, *left.vmemory, *left.whole, device.memory_bytes, device.least_bytes

    def _take(self, container: datatypes.Container, chosen: Iterable[int]) -> list[_FreeParts]:
        """Allocate *container*'s share of the *chosen*; return what was left of them before."""
        before = []
        for position in chosen:
            left = self._left[position]
            before.append(left)
            after = _FreeParts([*left.vcore], [*left.vmemory], [*left.whole])
            share = self._share(container.need, position)
            for phase in self._phases[container.name]:
                after.vcore[phase] -= share.vcore
                after.vmemory[phase] -= share.vmemory
                after.whole[phase] = False
            self._left[position] = after
        return before

    def _choices(self, container: datatypes.Container) -> Iterable[tuple[int, ...]]:
        """Return the candidate devices for *container*, in the order of the policy."""
        need = container.need
        fitting = self._fitting(container)
        if len(fitting) < need.count:
            return ()
        if need.count == 1:
            return [(position,) for position in self._ordered(container, fitting)]
        found = nearness.sets(self._near(), tuple(fitting), need.count)
        self._steps += self._back * len(found)  # each is examined, however few are near enough
        return [chosen for chosen in self._preferred(container, found) if self._is_near(chosen)]

    def _fitting(self, container: datatypes.Container) -> list[int]:
        need, phases = container.need, self._phases[container.name]
        return [index for index in range(len(self._rooms)) if self._fits(need, index, phases)]

    def _fits(self, need: datatypes.ContainerNeed, position: int, phases: Iterable[int]) -> bool:
        left, device = self._left[position], self._rooms[position].device
        return all(
            free_capacity.has(
                device, need, left.vcore[at], left.vmemory[at], untouched=left.whole[at]
            )
            for at in phases
        )

    def _ordered(self, container: datatypes.Container, fitting: Sequence[int]) -> list[int]:
        """Order single devices: by the growth of the pod's peak, then by room.

        Those that hold it without a suspension of other pods come first.
        """
        phases = self._phases[container.name]
        keys = {
            position: (
                self._exceeds(container.need, position, phases),
                self._growth(container.need, position, phases),
                *self._room(position),
            )
            for position in fitting
        }
        ordered = sorted(fitting, key=lambda position: (keys[position], position))
        best = [position for position in ordered if keys[position] == keys[ordered[0]]]
        if len(best) > 1 and self._rooms[best[0]].untouched:  # using one breaks up a group
            crowds = nearness.crowds(self._near(), tuple(best))
            ordered[: len(best)] = sorted(best, key=lambda position: (crowds[position], position))
        return ordered

    def _exceeds(
        self, need: datatypes.ContainerNeed, position: int, phases: Iterable[int]
    ) -> bool:
        """Return whether the reservations of a device would exceed it."""
        left, device = self._left[position], self._rooms[position].device
        vcore = device.reservable_vcore - datatypes.WHOLE
        size = device.reservable_bytes - device.memory_bytes
        return any(
            left.vcore[at] - need.vcore < vcore or left.vmemory[at] - need.vmemory < size
            for at in phases
        )

    def _room(self, position: int) -> tuple[int, int, int]:
        """Return a sort key of a device's room: less is better."""
        left, tenants = self._left[position], self._rooms[position].tenants
        if self._pod.packing is datatypes.Packing.SPREAD:
            return -min(left.vcore), -min(left.vmemory), tenants
        return min(left.vcore), min(left.vmemory), -tenants

    def _growth(
        self, need: datatypes.ContainerNeed, position: int, phases: Iterable[int]
    ) -> tuple[int, int]:
        """Return by how much the pod's peak on a device would grow."""
        left = self._left[position]
        if len(left.vcore) == 1:
            return 0, 0  # the same everywhere
        share = self._share(need, position)
        low_vcore, low_size = min(left.vcore), min(left.vmemory)
        vcore = max(share.vcore - (left.vcore[phase] - low_vcore) for phase in phases)
        size = max(share.vmemory - (left.vmemory[phase] - low_size) for phase in phases)
        return max(vcore, 0), 0 if need.whole else max(size, 0)

    def _preferred(
        self, container: datatypes.Container, found: Iterable[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """Order sets by the growth of the pod's peak, then by nearness and room.

        Whole devices all have the same room.
        """
        phases, need = self._phases[container.name], container.need

        def key(chosen: tuple[int, ...]) -> tuple[object, ...]:
            growth = sum(self._growth(need, position, phases)[0] for position in chosen)
            room = () if need.whole else sorted(map(self._room, chosen))
            return growth, nearness.worst(self._near(), chosen), *room

        if need.whole and len(self._left[0].vcore) == 1:
            return list(found)
        return sorted(found, key=key)

    def _is_near(self, chosen: Sequence[int]) -> bool:
        wanted = self._pod.nearness
        if wanted is datatypes.Nearness.NVLINK:
            return nearness.worst(self._near(), chosen) == nearness.NVLINK
        if wanted is datatypes.Nearness.NUMA:
            nodes = {self._rooms[position].device.numa for position in chosen}
            return len(nodes) == 1 and None not in nodes
        return True

    def _may_be_near(self, container: datatypes.Container) -> bool:
        """Return whether a container might have devices that are near enough to each other."""
        need, wanted = container.need, self._pod.nearness
        if need.count == 1 or wanted is datatypes.Nearness.PREFERRED:
            return True
        left: list[int] = []
        kept = self._fitting(container)
        while len(kept) != len(left):  # drop devices with too few near ones until nothing changes
            left = kept
            kept = [
                one
                for one in left
                if sum(self._is_near((one, other)) for other in left if other != one)
                >= need.count - 1
            ]
        return len(kept) >= need.count

    def _near(self) -> nearness.PairCosts:
        return nearness.table(tuple(room.device for room in self._rooms))
