"""What a profiler recorded of one process and one device: calls, and the work they launched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = frozenset(("node", "node_memset", "node_d2d"))
DEFAULT_STREAMS = (0, 7)  # the numbers that HIP and CUPTI give to the default stream


@dataclasses.dataclass(slots=True)
class Record:
    """A host call and the activity that it launched, or an activity of a graph; times in ns."""

    thread: int | None  # None: no host call
    start: int
    duration: int
    kind: str
    stream: int | None = None  # an index into the trace's streams
    device_start: int | None = None
    device_duration: int = 0
    kernel: int | None = None  # an index into the trace's kernels
    grid: Sequence[int] | None = None
    block: Sequence[int] | None = None
    shared: int = 0
    ref: int | None = None  # of a node: the record of its graph launch
    after: int | None = None  # the record whose end let this one start, on another stream

    @property
    def end(self) -> int:
        """When the host call was over."""
        return self.start + self.duration

    @property
    def device_end(self) -> int:
        """When the activity was over; 0 if there was none."""
        return 0 if self.device_start is None else self.device_start + self.device_duration


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """One recording."""

    name: str
    streams: Sequence[int]  # as the profiler numbers them
    kernels: Sequence[str]
    records: Sequence[Record]  # in the order of their calls
    duration: int
    steps: int = 0  # of the program, whole ones; 0: it marked none
    gpu: str = ""  # that was recorded; empty: not known

    @property
    def activities(self) -> int:
        """How many kernels, copies and sets the device did."""
        return sum(record.device_start is not None for record in self.records)

    def busy_ns(self) -> int:
        """Return for how long anything ran on the device."""
        spans = sorted(
            (r.device_start, r.device_end) for r in self.records if r.device_start is not None
        )
        total, until = 0, -(2**63)
        for begin, end in spans:
            total += max(0, end - max(begin, until))
            until = max(until, end)
        return total
