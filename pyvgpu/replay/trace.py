"""The recorded trace of one process and one device: calls, and the work that they launched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = frozenset(("node", "node_memset", "node_d2d"))
DEFAULT_STREAMS = (0, 7)  # the numbers that HIP and CUPTI give to the default stream


@dataclasses.dataclass(slots=True)
class TraceRecord:
    """A host call and the activity that it launched, or an activity of a graph; times in ns."""

    thread: int | None  # None: not a host call
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
    ref: int | None = None  # for a node: the record of its graph launch
    after: int | None = None  # the record on another stream that this one waited for

    @property
    def end(self) -> int:
        """The end of the host call."""
        return self.start + self.duration

    @property
    def device_end(self) -> int:
        """The end of the activity; 0 if there was none."""
        return 0 if self.device_start is None else self.device_start + self.device_duration


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """One recording."""

    name: str
    streams: Sequence[int]  # the profiler's numbers
    kernels: Sequence[str]
    records: Sequence[TraceRecord]  # in the order of their calls
    duration: int
    steps: int = 0  # complete ones of the program; 0: none are marked
    gpu: str = ""  # name of the recorded GPU; empty: unknown

    @property
    def activities(self) -> int:
        """The number of kernels, copies and memsets."""
        return sum(record.device_start is not None for record in self.records)

    def busy_ns(self) -> int:
        """Return the total time in which the device was busy."""
        spans = sorted(
            (r.device_start, r.device_end) for r in self.records if r.device_start is not None
        )
        total, until = 0, -(2**63)
        for begin, end in spans:
            total += max(0, end - max(begin, until))
            until = max(until, end)
        return total
