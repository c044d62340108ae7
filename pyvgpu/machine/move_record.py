"""The record of a run's moves between device and host memory, in its reservation's folder.

The run's supervisor rewrites it after each suspension and resumption; `pyvgpu top` reads it for
metrics. Times are CLOCK_MONOTONIC, which all processes of the machine share.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names

if TYPE_CHECKING:
    from pathlib import Path

BYTES = 512  # of the file, padded: it is rewritten in one write


@dataclasses.dataclass(frozen=True, slots=True)
class MoveRecord:
    """Sums over all moves of one run since its start."""

    suspensions: int = 0
    resumptions: int = 0
    refused_moves: int = 0  # nothing was moved, or all of it was moved back
    to_host_bytes: int = 0  # also of moves that were taken back
    to_device_bytes: int = 0
    suspended_seconds: float = 0.0  # of suspensions that are over
    suspended_since: float = 0.0  # 0: it is not suspended

    def suspended(self, now: float) -> MoveRecord:
        """Return the record after a suspension that ended *now*."""
        return dataclasses.replace(self, suspensions=self.suspensions + 1, suspended_since=now)

    def resumed(self, now: float) -> MoveRecord:
        """Return the record after a resumption that ended *now*."""
        return dataclasses.replace(
            self,
            resumptions=self.resumptions + 1,
            suspended_seconds=self.seconds_suspended(now),
            suspended_since=0.0,
        )

    def refused(self) -> MoveRecord:
        """Return the record after a move that was refused."""
        return dataclasses.replace(self, refused_moves=self.refused_moves + 1)

    def moved(self, to_host: int, to_device: int) -> MoveRecord:
        """Return the record with so many more bytes moved."""
        return dataclasses.replace(
            self,
            to_host_bytes=self.to_host_bytes + to_host,
            to_device_bytes=self.to_device_bytes + to_device,
        )

    def seconds_suspended(self, now: float) -> float:
        """Return for how many seconds the run has been suspended, all suspensions together."""
        begun = self.suspended_since
        return self.suspended_seconds + (max(0.0, now - begun) if begun else 0.0)


def write(folder: Path, record: MoveRecord) -> None:
    """Rewrite the record of the run in *folder* in one write; OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(folder / names.MOVES_FILE, flags, 0o644)
    try:
        os.fchmod(file, 0o644)  # whatever the umask: other users' programs read it
        os.pwrite(file, json.dumps(dataclasses.asdict(record)).encode().ljust(BYTES), 0)
    finally:
        os.close(file)


def load(raw: bytes) -> MoveRecord:
    """Parse the contents of the file; DataError if they are not valid."""
    try:
        found: dict[str, Any] = json.loads(raw)
        known = {x.name for x in dataclasses.fields(MoveRecord)}  # a later version may write more
        record = MoveRecord(**{name: value for name, value in found.items() if name in known})
        numbers = dataclasses.asdict(record)
        seconds = [numbers.pop(name) for name in ("suspended_seconds", "suspended_since")]
        valid = all(type(x) is int and 0 <= x < 1 << 63 for x in numbers.values()) and all(
            type(x) in (int, float) and math.isfinite(x) and x >= 0 for x in seconds
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise errors.DataError(f"not a record of moves: {exc}") from exc
    if not valid:
        raise errors.DataError("not a record of moves")
    return record
