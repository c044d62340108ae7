"""The record of an oversubscribed run in its reservation's folder, and its view as a tenant.

The run's supervisor writes it, under the lock of the reservations; all supervisors read it. Times
are CLOCK_MONOTONIC, which all processes of the machine share.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, oversubscription
from pyvgpu.oversubscription import MovableTenant, TenantState

if TYPE_CHECKING:
    from pyvgpu import quota, region

BYTES = 4096  # of the file, padded: it is rewritten in one write
_KEPT_MOVES = 64  # recent ones


@dataclasses.dataclass(frozen=True, slots=True)
class TenantRecord:
    """What the supervisor of an oversubscribed run tells other supervisors."""

    rules: oversubscription.MoveRules
    since: float  # when its state began
    moving_since: float = 0.0  # when the move in progress began; 0: there is none
    suspended_at: float = 0.0  # when its last suspension began; it wants to work later
    is_new: bool = False  # its program has not been started yet
    is_manual: bool = False  # suspended by `pyvgpu suspend`: not resumed without a command
    move_seconds: float = 0.0  # how long its last suspension and resumption took together
    refused_until: float = 0.0  # it cannot be moved before
    refusal: str = ""  # why
    suspensions: int = 0  # by the policy, since its start
    resumptions: int = 0
    moves: tuple[float, ...] = ()  # recent ones
    seen: float = 0.0  # when its supervisor last decided; 0: unknown
    host_memory: int | None = None  # bytes that all suspended runs may take; None: no bound

    def seen_at(self, now: float) -> TenantRecord:
        """Return the record after a decision of its supervisor."""
        return dataclasses.replace(self, seen=now)

    def moved(self, now: float, *, resumed: bool) -> TenantRecord:
        """Return the record with one more move, which begins *now*."""
        return dataclasses.replace(
            self,
            moving_since=now,
            suspended_at=self.suspended_at if resumed else now,
            suspensions=self.suspensions + (not resumed),
            resumptions=self.resumptions + resumed,
            moves=(*self.moves, now)[-_KEPT_MOVES:],
        )

    def arrived(self, now: float) -> TenantRecord:
        """Return the record after the move in progress."""
        return dataclasses.replace(
            self,
            since=now,
            moving_since=0.0,
            is_new=False,
            # Both directions are about as fast.
            move_seconds=2 * (now - self.moving_since),
            refusal="",
        )

    def stayed(self, now: float, seconds: float, why: str) -> TenantRecord:
        """Return the record after a move that was refused: it is not tried again for *seconds*."""
        return dataclasses.replace(
            self, moving_since=0.0, refused_until=now + seconds, refusal=why
        )


def dump(record: TenantRecord) -> bytes:
    """Return the contents of the file."""
    text = json.dumps(dataclasses.asdict(record)).encode()
    if len(text) > BYTES:  # of a long refusal
        text = json.dumps(dataclasses.asdict(dataclasses.replace(record, refusal=""))).encode()
    return text.ljust(BYTES)


def load(raw: bytes) -> TenantRecord:
    """Parse the contents of the file; DataError if they are not valid."""
    try:
        found: dict[str, Any] = json.loads(raw)
        rules = oversubscription.MoveRules(**_known(oversubscription.MoveRules, found["rules"]))
        moves = tuple(map(float, found["moves"]))[-_KEPT_MOVES:]
        known = _known(TenantRecord, found)
        record = TenantRecord(**{**known, "rules": rules, "moves": moves})
        times = (record.since, record.moving_since, record.suspended_at, record.seen)
        numbers = (*times, record.move_seconds, record.refused_until, *moves)
        flags = (record.is_new, record.is_manual)
        counts = (record.suspensions, record.resumptions)
        valid = (
            all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
            and all(isinstance(x, bool) for x in flags)
            and all(type(x) is int and x >= 0 for x in counts)
            and isinstance(record.refusal, str)
            and (record.host_memory is None or type(record.host_memory) is int)
        )
    except (ValueError, KeyError, TypeError, AttributeError, errors.UsageError) as exc:
        raise errors.DataError(f"not a record of an oversubscribed run: {exc}") from exc
    if not valid:
        raise errors.DataError("not a record of an oversubscribed run")
    return record


def _known(kind: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows: a later one may have written more."""
    return {x.name: found[x.name] for x in dataclasses.fields(kind) if x.name in found}


@dataclasses.dataclass(frozen=True, slots=True)
class TenantReservation:
    """What a tenant has of its device."""

    memory: int  # bytes
    vcore: int  # percent of the device's time
    weight: float  # of its slice
    priority: quota.Priority


def tenant_of(
    key: str,
    record: TenantRecord,
    reserved: TenantReservation,
    state: TenantState,
    activity: region.Activity | None,
) -> MovableTenant:
    """Return the tenant of a *record*, whose quota says *state*.

    Without an *activity* it counts as working.
    """
    if record.moving_since:
        state = TenantState.MOVING
    wanted, worked = None, math.inf
    if activity is not None:
        worked = math.inf if activity.waits else activity.worked
        wanted = activity.wanted if activity.wanted > record.suspended_at else None
        # A call that was noted just before its suspension, and waits, is not noted again.
        worked_then = record.suspended_at - record.rules.idle_seconds < worked
        if wanted is None and worked_then and record.suspended_at:
            wanted = record.suspended_at
    if record.is_new:
        wanted = record.since
    return MovableTenant(
        key=key,
        memory=reserved.memory,
        vcore=reserved.vcore,
        state=state,
        since=record.moving_since or record.since,
        worked=worked,
        wanted=wanted if state is TenantState.SUSPENDED else None,
        is_new=record.is_new,
        weight=reserved.weight,
        priority=reserved.priority,
        rules=record.rules,
        move_seconds=record.move_seconds,
        refused_until=record.refused_until,
        moves=record.moves,
    )


def state_of(suspension: region.Suspension) -> TenantState:
    """Return the state that a tenant's quota says."""
    if not suspension.gated:
        return TenantState.RUNNING
    return TenantState.SUSPENDED if suspension.released else TenantState.MOVING


def now() -> float:
    """Return the time of the records."""
    return time.monotonic()
