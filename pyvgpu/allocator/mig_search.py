"""Choose GPUs and placements for the MIG instances of a pod; pure.

Of all placements the one is chosen that costs the least room for later instances, so that the GPU
of most use for them stays uncut.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import datatypes, free_capacity, mig_placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.allocator import search_budget
    from pyvgpu.allocator.mig_placement import Places

    Shares = dict[str, tuple[datatypes.NodeShare, ...]]


def find(
    free: Sequence[free_capacity.FreeCapacity],
    pod: datatypes.Pod,
    budget: search_budget.SearchBudget,
) -> Shares | None:
    """Return an instance for each container of *pod*; None if they do not all fit.

    Containers do not share instances, not even those that never run at the same time: an instance
    lives as long as its pod.
    """
    order = sorted(pod.containers, key=lambda one: (-one.need.vcore, -one.need.vmemory, one.name))
    most = budget.steps
    steps = 0

    def search(at: int, places: tuple[Places, ...], found: Shares) -> Shares | None:
        nonlocal steps
        if at == len(order):
            return found
        container = order[at]
        failed = set()
        for position, share in _candidates(free, pod, container, places):
            now = (
                *places[:position],
                mig_placement.after(places[position], share.mig),
                *places[position + 1 :],
            )
            state = tuple(sorted(zip((each.device.profiles for each in free), now, strict=True)))
            if state in failed:  # GPUs of one kind are alike
                continue
            if steps >= most:
                return None
            done = search(at + 1, now, {**found, container.name: (share,)})
            if done is not None:
                return done
            steps += 1
            failed.add(state)
        return None

    placed = search(0, tuple(each.places for each in free), {})
    budget.left -= steps
    return placed


def _candidates(
    free: Sequence[free_capacity.FreeCapacity],
    pod: datatypes.Pod,
    container: datatypes.Container,
    places: tuple[Places, ...],
) -> list[tuple[int, datatypes.NodeShare]]:
    """Return the placements for a container, the best first, with the number of the GPU."""
    found = []
    for position, (capacity, occupied) in enumerate(zip(free, places, strict=True)):
        device = capacity.device
        if not _is_open(capacity, pod.selector):
            continue
        profile = mig_placement.profile_for(device.profiles, pod.selector.mig, container.need)
        if profile is None:
            continue
        before = mig_placement.room(device.profiles, occupied)
        for start in mig_placement.starts(device.profiles, occupied, profile.name):
            text = mig_placement.place(profile.name, start)
            left = mig_placement.room(device.profiles, mig_placement.after(occupied, text))
            share = datatypes.NodeShare(
                device.uuid,
                container.need.vcore,
                container.need.vmemory or profile.memory_bytes,
                text,
            )
            rank = -left if pod.packing is datatypes.Packing.SPREAD else before - left
            found.append((rank, left - before, position, -start, share))
    return [
        (position, share) for _, _, position, _, share in sorted(found, key=lambda one: one[:4])
    ]


def _is_open(capacity: free_capacity.FreeCapacity, selector: datatypes.Selector) -> bool:
    return bool(capacity.device.profiles) and not free_capacity.unfit(capacity.device, selector)


def problem(
    free: Sequence[free_capacity.FreeCapacity],
    pod: datatypes.Pod,
    shares: Mapping[str, Sequence[datatypes.NodeShare]],
) -> str:
    """Return why *shares*, chosen for *pod* by another component, are not valid, or nothing."""
    rooms = {each.device.uuid: each for each in free}
    selector = pod.selector
    if not selector.mig:  # the scheduler's choice, which has respected the pod's selector
        selector = dataclasses.replace(selector, mig=mig_placement.SMALLEST)
    places = {each.device.uuid: each.places for each in free}
    for container in pod.containers:
        chosen = shares.get(container.name, ())
        if len(chosen) != 1 or chosen[0].uuid not in rooms:
            return f"{container.name}: one MIG instance on a GPU of this node must be chosen"
        share, capacity = chosen[0], rooms[chosen[0].uuid]
        wrong = _wrong(capacity, selector, container.need, share, places[share.uuid])
        if wrong:
            return f"{container.name}: {capacity.device.label} {wrong}"
        places[share.uuid] = mig_placement.after(places[share.uuid], share.mig)
    return ""


def _wrong(
    capacity: free_capacity.FreeCapacity,
    selector: datatypes.Selector,
    need: datatypes.ContainerNeed,
    share: datatypes.NodeShare,
    occupied: Places,
) -> str:
    device = capacity.device
    closed = free_capacity.unfit(device, selector)
    if closed:
        return closed
    try:
        name, start = mig_placement.split(share.mig)
    except errors.DataError as exc:
        return str(exc)
    wrong = mig_placement.mismatch(
        device.profiles, selector.mig if selector.mig != mig_placement.SMALLEST else name, need
    )
    if wrong:
        return wrong
    if selector.mig not in (mig_placement.SMALLEST, name):
        return f"was chosen for an instance of {name}, not of {selector.mig}"
    if start not in mig_placement.starts(device.profiles, occupied, name):
        return f"has no free place for {share.mig}, it has {', '.join(occupied) or 'no instance'}"
    return ""
