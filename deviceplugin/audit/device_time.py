"""Average device time of containers over a minute, from NVML's samples of processes; pure.

The container itself writes the time in its ledger. NVML samples which process has a kernel on the
device, so it shows a container that has bypassed its share. Samples are coarse: a kernel of a
second is a sample of 100. So only the average of a minute counts, and only if it is far above the
container's limit.
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
    """A container that used more of a device's time than its limit."""

    uuid: str
    grant: str
    percent: int  # of the device's time, over the window
    allowed: int  # the same


@dataclasses.dataclass(frozen=True, slots=True)
class TimeSample:
    """A container's usage and limit at one moment, in percent of a device's time."""

    used: int
    allowed: int


class Times:
    """The samples of the last minute."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], collections.deque[tuple[float, TimeSample]]] = {}

    def note(self, now: float, samples: Mapping[tuple[str, str], TimeSample]) -> None:
        """Record a sample of each container that could exceed its limit, by device and grant."""
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
        """Return the containers that exceeded their limit over a whole window."""
        found = []
        for (uuid, grant), samples in self._samples.items():
            if samples[-1][0] - samples[0][0] < WINDOW_SECONDS - 2 * SAMPLE_SECONDS:
                continue
            used = sum(sample.used for _, sample in samples) / len(samples)
            allowed = sum(sample.allowed for _, sample in samples) / len(samples)
            if used > allowed + TOLERANCE_PERCENT:
                found.append(Above(uuid, grant, round(used), round(allowed)))
        return found
