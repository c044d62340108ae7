"""Decides the next step of the demonstration from the observations so far. Pure.

Steps are due after fractions of the planned duration, so that a short demonstration has the same
steps. On a busy machine it continues until every claim has been tested, for at most
TIMEOUT_SECONDS. It ends early if a tenant fails, and so does that tenant's claim.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pyvgpu.demo import assertions, shares
from pyvgpu.demo.observations import TENANTS, EventKind, Role

if TYPE_CHECKING:
    from pyvgpu.demo.observations import Observations

SHORTEST, LONGEST = 5, 22  # seconds; the tenants end before 30
TIMEOUT_SECONDS = 90


class DemoStep(enum.Enum):
    """An action on the runs of the demonstration."""

    KILL = enum.auto()  # kill the doomed tenant's process
    RESTART = enum.auto()  # let the doomed run start its next process
    START_LATE = enum.auto()  # start the run that requests too much
    END = enum.auto()


def due(seen: Observations, done: frozenset[DemoStep], seconds: float) -> DemoStep | None:
    """Return the step that is due after *seconds*; None if none is, or all are *done*."""
    part = seconds / seen.plan.seconds
    if all(seen.first(role, EventKind.ENDED) for role in TENANTS):
        return DemoStep.END
    if seconds >= TIMEOUT_SECONDS or (part >= 1 and _is_settled(seen)):
        return DemoStep.END
    holding = seen.first(Role.DOOMED, EventKind.HELD)
    refused = seen.first(Role.GROWER, EventKind.REFUSED)
    if DemoStep.KILL not in done:
        return DemoStep.KILL if part >= 0.4 and holding and refused else None
    killed = seen.first(Role.DOOMED, EventKind.KILLED)
    if (
        DemoStep.RESTART not in done
        and killed
        and part >= killed.seconds / seen.plan.seconds + 0.1
    ):
        back = assertions.seconds_until_back(seen, killed.seconds)
        return DemoStep.RESTART if back is not None else None
    if DemoStep.START_LATE not in done and part >= 0.65 and DemoStep.RESTART in done:
        return DemoStep.START_LATE
    return None


def _is_settled(seen: Observations) -> bool:
    """Return whether all claims have been tested, or a tenant has failed."""
    killed = seen.first(Role.DOOMED, EventKind.KILLED)
    if killed and shares.window(seen):
        shown = (
            seen.first(Role.IDLE, EventKind.HELD),
            seen.first(Role.LATE, EventKind.START_REFUSED),
            seen.first(Role.DOOMED, EventKind.HELD, killed.seconds),
            seen.first(Role.STEADY, EventKind.ROUND, killed.seconds),
        )
        if all(shown):
            return True
    return any(seen.of(role, EventKind.ENDED, EventKind.FAILED) for role in TENANTS)
