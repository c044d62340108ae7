"""Result types shared by all of the doctor's checks."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable


class CheckState(enum.StrEnum):
    """The state of a checked item."""

    OK = "ok"
    MISSING = "missing"
    LIMITED = "limited"  # pyvgpu works without it, but less well
    SKIPPED = "skipped"  # cannot be checked, since another item is missing


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and the remedy."""

    state: CheckState
    found: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, with its name."""

    check: str
    state: CheckState
    found: str
    remedy: str


def row(name: str, check: Callable[[], Finding]) -> CheckResult:
    """Return the finding of *check*; its error is a finding, too."""
    try:
        found = check()
    except errors.PyVgpuError as exc:
        found = Finding(CheckState.MISSING, str(exc))
    return CheckResult(name, found.state, found.found, found.remedy)
