"""Policy of oversubscription: which tenant of a device to suspend or to resume next.

Pure: it receives the tenants of one device and the time, and returns one move at a time, because
all moves of a device share its link to the host. The shell observes, moves, and asks again.

- The memory and time of the tenants that are not suspended never exceed the device.
- A tenant that begins displaces only idle tenants. A suspended one that wants to work displaces
  idle tenants, and also those that work once their slice is over.
- Idle before working, low priority before high, longest idle first.
- The queue is served in order of waiting; each level of priority counts as one slice of waiting.
- A slice grows with the tenant's weight, with each level of priority that it is above the tenant
  that waits, and with the time that its own moves take.
- At most so many moves per minute; a change that needs more waits for a minute without moves.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

from pyvgpu import errors, quota

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MINUTE = 60.0
MOST_RATIO = 16  # of the reservations to the device
STUCK_SECONDS = 300.0  # a move that takes longer does not hold up others
LOSS = 10  # a slice is at least this many times as long as the tenant's last moves
PRESUMED_SLICES = 10  # with no known demand: suspended for so many slices, it may want to work

_LEVELS = {quota.Priority.LOW: 0, quota.Priority.NORMAL: 1, quota.Priority.HIGH: 2}


@dataclasses.dataclass(frozen=True, slots=True)
class MoveRules:
    """What a tenant is to be moved by."""

    idle_seconds: float = 60.0  # without work, before it may be suspended
    slice_seconds: float = 120.0  # of a tenant that works while others wait
    moves_per_minute: int = 6  # of the device; the lowest of all tenants counts

    def __post_init__(self) -> None:
        """Raise UsageError unless all are finite and in their ranges."""
        for name in ("idle_seconds", "slice_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 1 <= value <= 86400):
                raise errors.UsageError(f"{name}={value}: must be 1 to 86400, such as 60")
        if not 1 <= self.moves_per_minute <= 1000:
            raise errors.UsageError(
                f"moves_per_minute={self.moves_per_minute}: must be 1 to 1000, such as 6"
            )


class TenantState(enum.Enum):
    """Where a tenant's memory is."""

    RUNNING = "running"  # on the device
    MOVING = "moving"  # being suspended or resumed: counts on the device
    SUSPENDED = "suspended"  # in host memory, or not begun


@dataclasses.dataclass(frozen=True, slots=True)
class MovableTenant:
    """One tenant that may be moved; times are seconds of one clock that never goes back."""

    key: str
    memory: int  # bytes, reserved while it is not suspended
    vcore: int  # percent of the device's time, likewise
    state: TenantState
    since: float  # when the state began
    worked: float = -math.inf  # when it is last known to have had work
    wanted: float | None = None  # since when it wants to work; SUSPENDED only
    is_new: bool = False  # it has never run: nothing of it is moved, and it displaces no work
    weight: float = 1.0  # its share beside others
    priority: quota.Priority = quota.Priority.NORMAL
    rules: MoveRules = dataclasses.field(default_factory=MoveRules)
    move_seconds: float = 0.0  # how long its last suspension and resumption took together
    refused_until: float = -math.inf  # it could not be moved; try again then
    moves: tuple[float, ...] = ()  # when it was moved, at least those of the last minute


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """The part of a device that all tenants together may have."""

    memory: int  # bytes
    vcore: int  # percent


class MoveAction(enum.Enum):
    """A move."""

    SUSPEND = "suspend"
    RESUME = "resume"


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """The next move."""

    action: MoveAction
    key: str
    for_key: str  # the tenant that gets the room


def admits(
    pool: Pool, tenants: Iterable[MovableTenant], memory: int, vcore: int, ratio: float
) -> bool:
    """Return whether one more tenant keeps the sum of all reservations within *ratio* × pool.

    It must fit alone, too: otherwise it would never begin.
    """
    others = tuple(tenants)
    return (
        memory <= pool.memory
        and vcore <= pool.vcore
        and memory + sum(x.memory for x in others) <= ratio * pool.memory
        and vcore + sum(x.vcore for x in others) <= ratio * pool.vcore
    )


def decide(pool: Pool, tenants: Sequence[MovableTenant], now: float) -> Move | None:
    """Return the next move, None if there is none now. Does not depend on the order of tenants."""
    if any(x.state is TenantState.MOVING and now - x.since < STUCK_SECONDS for x in tenants):
        return None
    left = _moves_left(tenants, now)
    queue = _queue(tenants, now)
    for place, candidate in enumerate(queue):
        if _fits(pool, tenants, candidate):
            return _resume(candidate, left)
        if not place:
            victims = _victims(pool, tenants, candidate, now)
            if victims:
                cost = len(victims) + _cost(candidate)
                if cost > left.moves and not left.is_quiet:
                    return None
                return Move(MoveAction.SUSPEND, victims[0].key, candidate.key)
        first = queue[0]
        if now - _wants_since(first) >= first.rules.slice_seconds:
            return None  # others would delay it
    if not queue:
        return _spare(pool, tenants, left, now)
    return None


def idle_seconds(tenant: MovableTenant, now: float) -> float:
    """Return for how long a running tenant has had no work."""
    return now - max(tenant.worked, tenant.since)


# --- moves --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _MovesLeft:
    """The moves that are allowed now."""

    moves: int
    is_quiet: bool  # none was made in the last minute


def _moves_left(tenants: Sequence[MovableTenant], now: float) -> _MovesLeft:
    most = min((x.rules.moves_per_minute for x in tenants), default=0)
    recent = sum(now - MINUTE < at for x in tenants for at in x.moves)
    return _MovesLeft(most - recent, not recent)


def _cost(candidate: MovableTenant) -> int:
    return 0 if candidate.is_new else 1


def _resume(candidate: MovableTenant, left: _MovesLeft) -> Move | None:
    if _cost(candidate) > left.moves:
        return None
    return Move(MoveAction.RESUME, candidate.key, candidate.key)


def _spare(
    pool: Pool, tenants: Sequence[MovableTenant], left: _MovesLeft, now: float
) -> Move | None:
    """Resume a tenant with no known demand, which may be unseen: no other needs the room."""
    for tenant in sorted(tenants, key=lambda x: (x.since, x.key)):
        if (
            tenant.state is TenantState.SUSPENDED
            and now - tenant.since >= tenant.rules.idle_seconds
            and now >= tenant.refused_until
            and _fits(pool, tenants, tenant)
        ):
            return _resume(tenant, left)
    return None


# --- the queue ----------------------------------------------------------------------------------


def _wants_since(tenant: MovableTenant) -> float:
    if tenant.wanted is not None:
        return tenant.wanted
    return tenant.since + PRESUMED_SLICES * tenant.rules.slice_seconds


def _queue(tenants: Sequence[MovableTenant], now: float) -> list[MovableTenant]:
    def rank(tenant: MovableTenant) -> tuple[float, str]:
        levels = _LEVELS[quota.Priority.HIGH] - _LEVELS[tenant.priority]
        return _wants_since(tenant) + levels * tenant.rules.slice_seconds, tenant.key

    return sorted(
        (
            x
            for x in tenants
            if x.state is TenantState.SUSPENDED
            and _wants_since(x) <= now
            and now >= x.refused_until
        ),
        key=rank,
    )


# --- room ---------------------------------------------------------------------------------------


def _missing(
    pool: Pool, tenants: Sequence[MovableTenant], candidate: MovableTenant
) -> tuple[int, int]:
    """Return how many bytes and percent too few are free for *candidate*."""
    on_device = [x for x in tenants if x.state is not TenantState.SUSPENDED]
    memory = candidate.memory + sum(x.memory for x in on_device) - pool.memory
    vcore = candidate.vcore + sum(x.vcore for x in on_device) - pool.vcore
    return max(0, memory), max(0, vcore)


def _fits(pool: Pool, tenants: Sequence[MovableTenant], candidate: MovableTenant) -> bool:
    return _missing(pool, tenants, candidate) == (0, 0)


def _victims(
    pool: Pool, tenants: Sequence[MovableTenant], candidate: MovableTenant, now: float
) -> list[MovableTenant]:
    """Return the tenants to suspend for *candidate*, in order; none if they are not enough."""
    running = [x for x in tenants if x.state is TenantState.RUNNING and now >= x.refused_until]
    idle = [x for x in running if idle_seconds(x, now) >= x.rules.idle_seconds]
    idle.sort(key=lambda x: (_LEVELS[x.priority], -idle_seconds(x, now), x.key))
    over = []
    if not candidate.is_new and candidate.wanted is not None:
        mean = sum(x.weight for x in tenants) / len(tenants)
        over = [
            x for x in running if x not in idle and now - x.since >= _slice(x, candidate, mean)
        ]
        over.sort(key=lambda x: (_LEVELS[x.priority], x.since, x.key))
    memory, vcore = _missing(pool, tenants, candidate)
    chosen: list[MovableTenant] = []
    for tenant in (*idle, *over):
        if memory <= 0 and vcore <= 0:
            break
        if (memory > 0 and tenant.memory) or (vcore > 0 and tenant.vcore):
            chosen.append(tenant)
            memory, vcore = memory - tenant.memory, vcore - tenant.vcore
    return chosen if memory <= 0 and vcore <= 0 else []


def _slice(tenant: MovableTenant, candidate: MovableTenant, mean: float) -> float:
    levels = max(0, _LEVELS[tenant.priority] - _LEVELS[candidate.priority])
    weighted = tenant.rules.slice_seconds * (tenant.weight / mean if mean > 0 else 1.0)
    return max(weighted, LOSS * tenant.move_seconds) * (1 + levels)
