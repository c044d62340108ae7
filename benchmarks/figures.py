"""Figures of `make bench` and their goals: one row of the table each.

``load`` (csrc/bench/) and arbiter.py measure; a figure picks a number from their output. A goal
is compared with the shim's overhead over the bare driver, or, where the shim handles the call by
itself, with the whole call.

A call's latency varies by a factor of two from one second to the next on a shared processor. So
single calls are timed in short phases, alternating between the two sides; the two phases of a turn
are a pair, and the overhead is the median of the differences within pairs. For medians of calls
only the quarter of the pairs counts in which both sides together were fastest, since the machine
was least disturbed then; for tails, all pairs.
"""

from __future__ import annotations

import dataclasses

KIB = 1 << 10
DIGITS = {"ns": 1, "us": 1, "ms": 1, "%": 2}  # behind the point


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One run of the load generator, or of arbiter.py."""

    name: str
    arguments: tuple[str, ...]  # for `load`
    quick: tuple[str, ...]  # the same where a rough answer will do
    vcore: int = 100
    turns: int = 1  # phases of both sides; of 1 each is a run of its own
    timed: bool = False  # the simulated device takes its time, and growing a pool, too
    of_arbiter: bool = False  # the bare side is a program that only wakes as often


TURNS = 10
LEAST_DISTURBED = 4  # for medians, one in so many turns counts
CALLS_IN_A_PHASE = 5_000  # some milliseconds
CALLS_OF_A_CROWD = 48_000  # so that each member is scheduled several times


def _calls(name: str, count: int = CALLS_IN_A_PHASE) -> Measurement:
    arguments = (name, str(count))
    return Measurement(name, arguments, arguments, turns=TURNS)


def _counted(name: str, quick_count: int) -> Measurement:
    return Measurement(name, (name,), (name, str(quick_count)))


def _starts(count: int) -> Measurement:
    arguments = ("init-crowd", str(count))
    return Measurement(f"init-crowd-{count}", arguments, arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One number of a measurement, and the goal for it."""

    name: str
    title: str
    measurement: Measurement
    metric: str  # a key of the line that `load` prints
    goal: float | None = None  # in the unit of the metric; None: shown, not evaluated
    evaluated: str = "added"  # or whole, or ratio: the shim's to the bare driver's
    unit: str = "ns"
    scale: float = 1  # the metric's units in one *unit*

    def quantity(self, value: float) -> str:
        """Return a value of the metric as people read it."""
        scaled = value / self.scale
        digits = DIGITS.get(self.unit, 0) if abs(scaled) < 1000 else 0
        return f"{scaled:,.{digits}f} {self.unit}".rstrip()

    def goal_in_words(self) -> str:
        """Return the value to compare and its goal; nothing if there is no goal."""
        return "" if self.goal is None else f"{self.evaluated} {self.comparison(self.goal)}"

    def comparison(self, value: float) -> str:
        """Return the value to compare with the goal, formatted."""
        return f"{value:.2f}" if self.evaluated == "ratio" else self.quantity(value)


FOOTPRINT = _counted("footprint", 10_000)
LIMITED = dataclasses.replace(FOOTPRINT, name="footprint-limited", vcore=99)
ARBITER = Measurement("arbiter", ("--seconds", "3"), ("--seconds", "2"), of_arbiter=True)
MICROSECOND = 1e3
MILLISECOND = 1e6


def _tail(of: Figure) -> Figure:
    name, title = f"{of.name}-p99", f"{of.title}, p99"
    return dataclasses.replace(of, name=name, title=title, metric="p99", goal=MICROSECOND)


def _crowd(count: int, goal_milliseconds: int) -> Figure:
    return Figure(
        f"init-crowd-{count}",
        f"{count} processes in cuInit at once, p99",
        _starts(count),
        "p99",
        goal=goal_milliseconds * MILLISECOND,
        unit="ms",
        scale=MILLISECOND,
    )


PAIR = Figure("pair", "alloc + free of 4 KiB", _calls("pair"), "p50", goal=60)
PAIR_LIVE = Figure("pair-live", "the same, 10,000 live", _calls("pair-live"), "p50", goal=60)
PAIR_ANY = Figure("pair-any", "the same, freeing any of them", _calls("pair-any"), "p50", goal=60)
PAIR_CROWD = Figure(
    "pair-crowd",
    "the same in 8 processes",
    _calls("pair-crowd", CALLS_OF_A_CROWD * 3),
    "p50",
    goal=60,
)

LAUNCH = Figure(
    "launch",
    "a launch with a share of time",
    dataclasses.replace(_calls("launch"), vcore=99),
    "p50",
    goal=15,
)

FIGURES = (
    LAUNCH,
    dataclasses.replace(_tail(LAUNCH), goal=150),
    Figure(
        "launch-threads",
        "the same in 16 threads",
        dataclasses.replace(_calls("launch-threads", CALLS_OF_A_CROWD), vcore=99),
        "p50",
        goal=60,
    ),
    Figure(
        "launch-whole",
        "a launch with the whole of it",
        dataclasses.replace(_calls("launch"), name="launch-whole"),
        "p50",
    ),
    PAIR,
    _tail(PAIR),
    PAIR_LIVE,
    _tail(PAIR_LIVE),
    PAIR_ANY,
    PAIR_CROWD,
    _tail(PAIR_CROWD),
    Figure("pair-async", "alloc + free on a stream", _calls("pair-async"), "p50", goal=80),
    Figure(
        "pool-quarter",
        "a quarter of a full pool again",
        _calls("pool-quarter", 200),
        "p50",
        goal=32 * 200,  # for each of its calls
    ),
    Figure(
        "pool-written",
        "the same, and written to",
        dataclasses.replace(_calls("pool-written", 200), timed=True),
        "p50",
        goal=1.2,
        evaluated="ratio",
        unit="us",
        scale=MICROSECOND,
    ),
    Figure("mapping", "create, map, unmap, release", _calls("mapping"), "p50", goal=200),
    Figure(
        "refusal",
        "an allocation past the quota",
        _calls("refusal"),
        "p50",
        goal=100,
        evaluated="whole",
    ),
    Figure(
        "memory-info",
        "cuMemGetInfo",
        _calls("memory-info"),
        "p50",
        goal=50,
        evaluated="whole",
    ),
    Figure(
        "nvml-memory",
        "nvmlDeviceGetMemoryInfo",
        _calls("nvml-memory"),
        "p50",
        goal=50,
        evaluated="whole",
    ),
    Figure(
        "process-list",
        "NVML's list of 8 processes",
        _calls("process-list"),
        "p50",
        goal=2 * MICROSECOND,
        evaluated="whole",
    ),
    Figure("lookup", "cuGetProcAddress, 400 names", _calls("lookup"), "p50", goal=100),
    Figure("untouched", "a call that is not hooked", _calls("untouched"), "p50"),
    Figure(
        "elsewhere",
        "not hooked, not the driver's",
        Measurement("elsewhere", ("elsewhere",), ("elsewhere",)),
        "elsewhere",
        goal=0,
        evaluated="whole",
        unit="",
    ),
    Figure(
        "start",
        "exec to the first cuCtxCreate",
        _counted("start", 30),
        "p50",
        goal=300 * MICROSECOND,
        unit="us",
        scale=MICROSECOND,
    ),
    _crowd(64, goal_milliseconds=5),
    _crowd(256, goal_milliseconds=250),
    Figure(
        "resident",
        "resident memory, 10,000 live",
        FOOTPRINT,
        "resident",
        goal=1024 * KIB,
        unit="KiB",
        scale=KIB,
    ),
    Figure("threads", "threads", FOOTPRINT, "threads", goal=0, unit=""),
    Figure(
        "threads-limited",
        "the same with a share of time",
        LIMITED,
        "threads",
        goal=1,
        unit="",
    ),
    Figure(
        "arbiter",
        "the arbiter with 8 busy runs, of a core",
        ARBITER,
        "percent",
        goal=2,  # it polls every 5 ms, so that clocks can attribute time slices
        evaluated="whole",
        unit="%",
    ),
    Figure(
        "arbiter-resident",
        "its resident memory",
        ARBITER,
        "resident",
        goal=8192 * KIB,
        evaluated="whole",
        unit="KiB",
        scale=KIB,
    ),
)
