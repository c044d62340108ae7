"""What a look at one thing says: shared by all of the doctor's checks."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable


class State(enum.StrEnum):
    """How a thing is."""

    OK = "ok"
    MISSING = "missing"
    LIMITED = "limited"  # pyvgpu works without it, less well


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw, and what to do about it."""

    state: State
    found: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What one check found."""

    check: str
    state: State
    found: str
    remedy: str


def row(name: str, look: Callable[[], Finding]) -> Row:
    """Return what *look* finds; that it fails is a finding, too."""
    try:
        found = look()
    except errors.PyVgpuError as exc:
        found = Finding(State.MISSING, str(exc))
    return Row(name, found.state, found.found, found.remedy)
