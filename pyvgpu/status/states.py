"""State of a container or run on a device, as the status page shows it. Pure."""

from __future__ import annotations

import enum

IDLE = 0.005  # of a device's time; a holder below it is idle
SHORT = 0.9  # of its share; a throttled holder below it gets less than its share
WAITING = 0.05  # of the time; a holder whose launches wait for more is throttled
EVALUATED_SECONDS = 30.0  # a state depends on the usage of the last half minute


class HolderState(enum.Enum):
    """State of a container or run on a device."""

    IDLE = "idle"
    RUNS = "runs"
    HELD = "at its limit"  # it demands more than its limit
    SHORT = "gets less than its share"
    SUSPENDED = "suspended"  # its memory is in host memory
    WAITING = "waits for room"  # oversubscribed: suspended, or not started, and wants to work
    FULL = "out of memory"  # allocations were refused in the last half minute


def state_of(vcore: float, used: float, waited: float, refused: int) -> HolderState:
    """Return the state of a holder of *vcore*, by the ratio that it *used*; both from 0 to 1.

    *waited* is the part of the last half minute that launches waited, *refused* the allocations
    refused in it.
    """
    if refused:
        return HolderState.FULL
    if waited >= WAITING:
        return HolderState.SHORT if used < SHORT * vcore else HolderState.HELD
    return HolderState.RUNS if used >= IDLE else HolderState.IDLE
