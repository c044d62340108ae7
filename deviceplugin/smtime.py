"""Average the device time of containers over a minute, by NVML's samples of processes; pure.

The ledger's own count of time is written by the container. NVML samples which process has a kernel
on the device, so a container that has lifted its share is seen there. Samples are coarse: a kernel
of a second is a sample of 100. So only the average of a minute counts, and only where it is far
beyond what the container may have.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLE_SECONDS = 1.0  # between two samples
WINDOW_SECONDS = 60.0
TOLERANCE_PERCENT = 20  # of a device's time


@dataclasses.dataclass(frozen=True, slots=True)
class Above:
    """A container that used more of a device's time than it may have."""

    uuid: str
    grant: str
    percent: int  # of the device's time, over the window
    allowed: int  # the same


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What one container used at one moment, in percent of a device's time."""

    used: int
    allowed: int


class Times:
    """The samples of the last minute."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], collections.deque[tuple[float, Sample]]] = {}

    def note(self, now: float, samples: Mapping[tuple[str, str], Sample]) -> None:
        """Take note of a sample of each container that may be above, by device and grant."""
        kept = {}
        for key, sample in samples.items():
            known = self._samples.get(key, collections.deque())
            # After a long time without samples, as while NVML did not answer, the window is empty.
            if known and now - known[-1][0] > WINDOW_SECONDS / 4:
                known.clear()
            known.append((now, sample))
            while known[-1][0] - known[0][0] > WINDOW_SECONDS:
                known.popleft()
            kept[key] = known
        self._samples = kept

    def above(self) -> list[Above]:
        """Return the containers that used too much over a whole window."""
        found = []
        for (uuid, grant), samples in self._samples.items():
            if samples[-1][0] - samples[0][0] < WINDOW_SECONDS - 2 * SAMPLE_SECONDS:
                continue
            used = sum(it.used for _, it in samples) / len(samples)
            allowed = sum(it.allowed for _, it in samples) / len(samples)
            if used > allowed + TOLERANCE_PERCENT:
                found.append(Above(uuid, grant, round(used), round(allowed)))
        return found
