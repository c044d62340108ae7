"""What a granter has around it: who makes things real, who says whose ids are whose, and sizes."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Protocol

from pyvgpu.allocator import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin import answers, grants, podresources, state

BIND_SECONDS = 60.0  # after which what was in doubt so long is refused for good


class Folders(Protocol):
    """What makes a grant real for a container runtime."""

    def answer(self, grant_id: str, vcore: int) -> answers.Answer:
        """Return what Allocate answers; nothing of the grant is there yet."""

    def make(self, grant: grants.Grant) -> None:
        """Make what a bound grant needs: all of it, or what is missing or of another driver."""

    def mend(self, grant: grants.Grant) -> None:
        """Make what is missing of one whose container may run; its driver stays the one it has."""

    def recall(self, grant_id: str) -> tuple[facts.Share, ...]:
        """Return what was made of a grant that nobody remembers; nothing if it was not bound."""

    def remove(self, grant_id: str) -> None:
        """Remove what there is of it, in use or not."""

    def revoke(self, grant_id: str) -> None:
        """Let nothing start on it again, and let those who use it have nothing more."""

    def is_used(self, grant_id: str) -> bool:
        """Tell whether a process of it lives."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Where it is said whose ids are whose."""

    state: state.State
    pods: podresources.PodResources


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How things are counted, and how long is waited."""

    unit: int  # bytes of one vmemory
    packing: facts.Packing = facts.Packing.BINPACK
    bind_seconds: float = BIND_SECONDS
    shares: bool = True  # else the node gives whole devices only
    clock: Callable[[], float] = time.monotonic  # which nobody sets
