"""Topology-aware selection: sets of devices, the nearest first.

The order is NVLink, then one PCIe switch, then one host bridge, then one NUMA node. Of sets that
are equally near, the first is the one whose allocation hurts the remaining devices least: it
breaks up the smallest group.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

from pyvgpu.allocator import datatypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NVLINK = 0  # the tier before those of datatypes.LinkPath
TIER = 100  # cost of one tier
MOST_SETS = 5000  # up to which all sets are tried; else only sets grown from each device

_APART = datatypes.DeviceLink()
_FURTHEST = (len(datatypes.LinkPath) + 1) * TIER


class PairCosts:
    """Costs of all pairs of devices, by position: from the tier, less for more links."""

    __slots__ = ("_hash", "rows")

    def __init__(self, rows: tuple[tuple[int, ...], ...]) -> None:
        self.rows = rows
        self._hash = hash(rows)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PairCosts) and self.rows == other.rows)


@functools.lru_cache(maxsize=64)
def table(devices: tuple[datatypes.NodeDevice, ...]) -> PairCosts:
    """Return the costs of all pairs of *devices*."""
    return PairCosts(tuple(tuple(_cost(one, other) for other in devices) for one in devices))


def _cost(one: datatypes.NodeDevice, other: datatypes.NodeDevice) -> int:
    if one.uuid == other.uuid:
        return 0
    link = one.links.get(other.uuid) or other.links.get(one.uuid) or _APART
    if link.nvlinks:
        return TIER - min(link.nvlinks, TIER - 1)
    same_node = one.numa is not None and one.numa == other.numa
    path = min(link.path, datatypes.LinkPath.NUMA) if same_node else link.path
    return (path + 1) * TIER


def tier(cost: int) -> int:
    """Return the tier of a cost: NVLINK or the number of a datatypes.LinkPath."""
    return (cost - 1) // TIER


@functools.lru_cache(maxsize=512)  # most nodes of a cluster are alike
def crowds(near: PairCosts, free: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Return the numbers of near devices for each of the *free* ones, the widest group first.

    The smallest of these is the device whose allocation keeps large groups whole.
    """
    return {one: _crowd(near.rows[one], one, free) for one in free}


def _crowd(row: tuple[int, ...], one: int, free: tuple[int, ...]) -> tuple[int, ...]:
    counts = [0] * (len(datatypes.LinkPath) + 1)
    for other in free:
        if other != one:
            counts[(row[other] - 1) // TIER] += 1
    linked, *within = itertools.accumulate(counts)
    return (linked, *reversed(within[:-1]))


@functools.lru_cache(maxsize=512)
def sets(near: PairCosts, candidates: tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """Return sets of *count* *candidates*, the best first; all sets unless there are too many."""
    if count > len(candidates):
        return ()
    if math.comb(len(candidates), count) <= MOST_SETS:
        found = set(itertools.combinations(candidates, count))
    else:
        # Of equally distant devices prefer those with more near neighbours.
        around = {one: sum(_crowd(near.rows[one], one, candidates)[:2]) for one in candidates}
        found = {_grown(near, around, seed, count) for seed in candidates}
    return tuple(sorted(found, key=lambda chosen: _rank(near, candidates, chosen)))


def worst(near: PairCosts, chosen: Sequence[int]) -> int:
    """Return the tier of the most distant pair of *chosen*; NVLINK for a single device."""
    pairs = itertools.combinations(chosen, 2)
    return max((tier(near.rows[one][other]) for one, other in pairs), default=NVLINK)


def _rank(
    near: PairCosts, candidates: tuple[int, ...], chosen: tuple[int, ...]
) -> tuple[int, int, int, tuple[int, ...]]:
    """Return the sort key of a set: distances within, nearness lost to the others, positions."""
    inner = [near.rows[one][other] for one, other in itertools.combinations(chosen, 2)]
    members = set(chosen)
    # The remaining devices lose nearness: the lower a cost, the greater the loss.
    lost = sum(
        _FURTHEST - near.rows[one][other]
        for one in chosen
        for other in candidates
        if other not in members
    )
    return tier(max(inner, default=1)), sum(inner), lost, chosen


def _grown(
    near: PairCosts, neighbours: Mapping[int, int], seed: int, count: int
) -> tuple[int, ...]:
    """Grow a set from *seed*, adding the nearest candidate each time."""
    chosen = [seed]
    distance = {other: (0, 0) for other in neighbours if other != seed}
    while len(chosen) < count:
        row, missing = near.rows[chosen[-1]], count - len(chosen)
        for other, (furthest, together) in distance.items():
            distance[other] = max(furthest, row[other]), together + row[other]
        best = min(distance.values())
        nearest = min(
            (other for other, cost in distance.items() if cost == best),
            key=lambda other: (-min(neighbours[other], missing - 1), other),
        )
        del distance[nearest]
        chosen.append(nearest)
    return tuple(sorted(chosen))
