"""What is measured, and what it may be: one row of the table each.

``load`` (csrc/bench/) measures; a figure picks a number from what it prints. A goal is held
against what the shim adds to the bare driver, or, where the shim answers by itself, against
the whole call.

What single calls take differs by a factor of two from one second to the next where other
machines share the processor, and never becomes less than it is. So of these figures the least
disturbed repetition of each side counts; of all others the median.
"""

from __future__ import annotations

import dataclasses

KIB = 1 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One run of the load generator."""

    name: str  # as `load` calls it
    quick_count: int  # samples where a rough answer will do


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One number of a measurement, and the goal for it."""

    name: str
    title: str
    measurement: Measurement
    metric: str  # a key of the line that `load` prints
    goal: float | None = None  # in the unit of the metric; None: shown, not judged
    judged: str = "added"  # or whole
    least: bool = True  # compare the least disturbed repetitions, not the medians of all
    unit: str = "ns"
    scale: float = 1  # the metric's units in one *unit*


PAIR = Measurement("pair", 20_000)
PAIR_LIVE = Measurement("pair-live", 20_000)
PAIR_ANY = Measurement("pair-any", 20_000)
PAIR_CROWD = Measurement("pair-crowd", 80_000)
PAIR_ASYNC = Measurement("pair-async", 20_000)
REFUSAL = Measurement("refusal", 20_000)
MEMORY_INFO = Measurement("memory-info", 20_000)
NVML_MEMORY = Measurement("nvml-memory", 20_000)
PROCESS_LIST = Measurement("process-list", 5_000)
LOOKUP = Measurement("lookup", 8_000)
START = Measurement("start", 30)
INIT_CROWD = Measurement("init-crowd", 256)
FOOTPRINT = Measurement("footprint", 10_000)

FIGURES = (
    Figure("pair", "alloc + free of 4 KiB", PAIR, "p50", goal=60),
    Figure("pair-live", "the same with 10,000 live allocations", PAIR_LIVE, "p50", goal=60),
    Figure("pair-any", "the same, freeing any of the 10,000", PAIR_ANY, "p50"),
    Figure("pair-crowd", "the same in 8 processes at once", PAIR_CROWD, "p50", goal=60),
    Figure("pair-async", "alloc + free on a stream", PAIR_ASYNC, "p50", goal=80),
    Figure("refusal", "an allocation past the quota", REFUSAL, "p50", goal=100, judged="whole"),
    Figure("memory-info", "cuMemGetInfo", MEMORY_INFO, "p50", goal=50, judged="whole"),
    Figure("nvml-memory", "nvmlDeviceGetMemoryInfo", NVML_MEMORY, "p50", goal=50, judged="whole"),
    Figure(
        "process-list",
        "NVML's list of 8 processes",
        PROCESS_LIST,
        "p50",
        goal=2000,
        judged="whole",
    ),
    Figure("lookup", "cuGetProcAddress, each of 400 names", LOOKUP, "p50"),
    Figure(
        "start",
        "exec to the first cuCtxCreate",
        START,
        "p50",
        goal=300e3,
        least=False,
        unit="us",
        scale=1e3,
    ),
    Figure(
        "init-crowd",
        "256 processes in cuInit at once, p99",
        INIT_CROWD,
        "p99",
        goal=250e6,
        least=False,
        unit="ms",
        scale=1e6,
    ),
    Figure(
        "resident",
        "resident memory, 10,000 live allocations",
        FOOTPRINT,
        "resident",
        goal=1024 * KIB,
        least=False,
        unit="KiB",
        scale=KIB,
    ),
    Figure("threads", "threads", FOOTPRINT, "threads", goal=0, least=False, unit=""),
)
