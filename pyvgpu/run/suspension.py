"""State machine of suspending and resuming the processes of a run, through CUDA's checkpoints.

Pure: it decides the next call of the driver from the states of the processes, and what the result
of a call means. suspender.py makes the calls. There is no state beside the driver's, so a
suspension that was interrupted anywhere is continued, or taken back, by asking again.

    RUNNING --lock--> LOCKED --checkpoint--> CHECKPOINTED --restore--> LOCKED --unlock--> RUNNING
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801


class ProcessState(enum.IntEnum):
    """CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4  # into storage of the program that began it, until that ends it
    RESTORING = 5


class CheckpointCall(enum.Enum):
    """A call of the driver; the values are the last words of its name."""

    LOCK = "Lock"
    CHECKPOINT = "Checkpoint"
    RESTORE = "Restore"
    UNLOCK = "Unlock"


class DesiredState(enum.Enum):
    """The state that all processes of a run shall reach."""

    RUNNING = "resume"
    SUSPENDED = "suspend"


class CallOutcome(enum.Enum):
    """What the result of a call means for the run."""

    DONE = enum.auto()
    AGAIN = enum.auto()  # read its state again: it has ended, or is just beginning or ending
    REFUSED = enum.auto()  # nothing happened, and nothing will
    LOST = enum.auto()  # the process cannot be restored any more


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The next call."""

    action: CheckpointCall
    pid: int


AFTER = {
    CheckpointCall.LOCK: ProcessState.LOCKED,
    CheckpointCall.CHECKPOINT: ProcessState.CHECKPOINTED,
    CheckpointCall.RESTORE: ProcessState.LOCKED,
    CheckpointCall.UNLOCK: ProcessState.RUNNING,
}

# In the order of the calls: all processes are locked before the first is checkpointed, and all are
# restored before the first goes on, because processes of a run may wait for each other.
_STEPS = {
    DesiredState.SUSPENDED: (
        (ProcessState.RUNNING, CheckpointCall.LOCK),
        (ProcessState.LOCKED, CheckpointCall.CHECKPOINT),
    ),
    DesiredState.RUNNING: (
        (ProcessState.CHECKPOINTED, CheckpointCall.RESTORE),
        (ProcessState.LOCKED, CheckpointCall.UNLOCK),
    ),
}

_REFUSED = {
    (CheckpointCall.LOCK, NOT_READY): "its calls and work on the device did not end in time",
    (CheckpointCall.LOCK, NOT_SUPPORTED): "the driver cannot lock it",
    (CheckpointCall.CHECKPOINT, NOT_SUPPORTED): (
        "it has managed memory, or memory that it shares with another process, or it is a client "
        "of MPS, which this driver cannot move"
    ),
    (CheckpointCall.RESTORE, OUT_OF_MEMORY): "the driver found too little room on the device",
    (CheckpointCall.CHECKPOINT, OUT_OF_MEMORY): (
        "the driver is out of memory; it cannot move memory of a device in MIG mode"
    ),
}
_ENDLESS = {
    ProcessState.FAILED: "the driver says that it has failed",
    ProcessState.CHECKPOINTING: "another program is just moving its memory to the host",
    ProcessState.RESTORING: "another program is just moving its memory to the device",
}
_AGAIN = (NOT_INITIALIZED, ILLEGAL_STATE, OPERATING_SYSTEM)


def next_step(desired: DesiredState, states: Mapping[int, ProcessState]) -> Step | None:
    """Return the next call, by the states of the processes by pid; None: nothing is left to do."""
    for state, action in _STEPS[desired]:
        for pid in sorted(states):
            if states[pid] is state:
                return Step(action, pid)
    return None


def find_unmoved(states: Mapping[int, ProcessState]) -> tuple[int, str] | None:
    """Return a process that no call brings to a desired state, and why; None: there is none."""
    for pid in sorted(states):
        if states[pid] in _ENDLESS:
            return pid, _ENDLESS[states[pid]]
    return None


def evaluate(action: CheckpointCall, result: int) -> CallOutcome:
    """Return what a CUresult of *action* means."""
    if result == 0:
        return CallOutcome.DONE
    if action is CheckpointCall.RESTORE and result in (
        OUT_OF_MEMORY,
        OPERATING_SYSTEM,
        INVALID_VALUE,
    ):
        return CallOutcome.LOST
    return CallOutcome.AGAIN if result in _AGAIN else CallOutcome.REFUSED


def explain(action: CheckpointCall, result: int) -> str:
    """Return why *action* was refused."""
    known = _REFUSED.get((action, result))
    return known or f"cuCheckpointProcess{action.value} returned error {result}"
