"""Script of the demonstration: decides the next step from the observations so far.

Times are fractions of the plan's, so that a short demonstration shows the same. On a busy machine
it lasts longer than planned, until every claim has been tested; but not forever, and not for a
tenant that has failed: then its claim fails.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pyvgpu.demo import assertions, shares
from pyvgpu.demo.observations import TENANTS, EventKind, Role

if TYPE_CHECKING:
    from pyvgpu.demo.observations import Observations

SHORTEST, LONGEST = 5, 22  # seconds; with the end of the tenants under 30
TIMEOUT_SECONDS = 90  # if the machine is too busy to show everything in the planned time


class StageStep(enum.Enum):
    """A step of the stage."""

    KILL = enum.auto()  # kill the doomed tenant's process
    GO = enum.auto()  # let the doomed run start its next process
    ASK = enum.auto()  # start the run that requests too much
    END = enum.auto()


def due(seen: Observations, done: frozenset[StageStep], seconds: float) -> StageStep | None:
    """Return the step that is due now, None if there is none."""
    part = seconds / seen.plan.seconds
    if all(seen.first(role, EventKind.ENDED) for role in TENANTS):
        return StageStep.END
    if seconds >= TIMEOUT_SECONDS or (part >= 1 and _is_settled(seen)):
        return StageStep.END
    holding = seen.first(Role.DOOMED, EventKind.HELD)
    refused = seen.first(Role.GROWER, EventKind.REFUSED)
    if StageStep.KILL not in done:
        return StageStep.KILL if part >= 0.4 and holding and refused else None
    killed = seen.first(Role.DOOMED, EventKind.KILLED)
    if StageStep.GO not in done and killed and part >= killed.seconds / seen.plan.seconds + 0.1:
        back = assertions.seconds_until_back(seen, killed.seconds)
        return StageStep.GO if back is not None else None
    if StageStep.ASK not in done and part >= 0.65 and StageStep.GO in done:
        return StageStep.ASK
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
