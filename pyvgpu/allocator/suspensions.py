"""The annotations by which a pod is suspended and resumed; pure.

The pod's user sets one (names.SUSPEND_ANNOTATION), and the agent of its node answers in the other
(names.SUSPENSION_ANNOTATION), which says for which request it is the answer.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING

from pyvgpu import errors, names

if TYPE_CHECKING:
    from collections.abc import Mapping

# Values of the request: the pod is to be suspended and keeps its reservation, or releases it; or
# it must never be suspended to make room.
KEEP, RELEASE, NEVER = "keep", "release", "never"


class PodState(enum.StrEnum):
    """The state of a pod's device memory."""

    RUNNING = "running"
    SUSPENDED = "suspended"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the agent made of a request."""

    state: PodState = PodState.RUNNING
    requested: str = ""  # the value of the request that this answers; empty: none
    host_bytes: int = 0  # device memory that is in host memory
    message: str = ""  # why the state is not the requested one

    def dump(self) -> str:
        """Return the annotation."""
        return json.dumps(
            {
                "state": self.state.value,
                "requested": self.requested,
                "hostBytes": self.host_bytes,
                "message": self.message,
            }
        )


def requested(annotations: Mapping[str, object]) -> str:
    """Return KEEP or RELEASE if a pod's user wants it suspended, else nothing.

    UsageError for an invalid value.
    """
    text = annotations.get(names.SUSPEND_ANNOTATION)
    if text is not None and text not in (KEEP, RELEASE, NEVER):
        raise errors.UsageError(
            f"{names.SUSPEND_ANNOTATION} {str(text)[:40]!r}: must be {KEEP}, {RELEASE} or "
            f"{NEVER}, such as {KEEP}, or absent"
        )
    return "" if text == NEVER else str(text or "")


def is_never(annotations: Mapping[str, object]) -> bool:
    """Return whether a pod must not be suspended to make room for others."""
    return annotations.get(names.SUSPEND_ANNOTATION) == NEVER


def answer(annotations: Mapping[str, object]) -> Answer:
    """Return the agent's answer on a pod; one that cannot be read counts as none."""
    try:
        found = json.loads(str(annotations.get(names.SUSPENSION_ANNOTATION) or "{}"))
        return Answer(
            PodState(found.get("state", PodState.RUNNING.value)),
            str(found.get("requested", "")),
            int(found.get("hostBytes", 0)),
            str(found.get("message", "")),
        )
    except (ValueError, TypeError, AttributeError):
        return Answer()
