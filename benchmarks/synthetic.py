"""Synthetic launch patterns with the statistics of recorded programs, for everyone to replay.

Each pattern has the figures of one recording: how fast it launches, how long its kernels take, how
many are alike, on how many streams, how busy the device is. A trace is drawn from them and a seed;
nothing of a recording is in it but these numbers. The pattern "drawn" has no figures of its own:
they are drawn from the seed, for programs that no figures describe.

    trace = make("training", seed=1)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.replay.trace import Trace, TraceRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

US, MS = 1_000, 1_000_000
CALL_NS = 2 * US  # a launch call, on the host
LATENCY_NS = 4 * US  # from the call to the device
BETWEEN_NS = 1 * US  # kernels of a stream
PACES, SLOWEST = 12, 1.2  # tried, and the slowest of them
NEAR = 0.01
BURSTS, QUICK = 0.03, 0.3  # pauses between bursts; of the mean, between launches of one
AWAITED = 0.9  # of the kernels that are tried
JITTER = 0.04  # of a kernel that is launched again
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
NORMAL = (-2.33, -1.28, -0.67, 0, 0.67, 1.28, 1.64, 2.33, 3.09, 3.5)  # of a normal distribution
DRAWN = "drawn"


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """What is known of a program, and how it goes about it."""

    name: str
    ms: float  # all of it
    kernels: int  # that run
    functions: int
    shapes: int  # (function, grid)
    us: tuple[float, ...]  # how long kernels take, at QUANTILES
    streams: int
    overlap: float  # percent of the busy time with more than one stream active
    busy: float  # percent of all time
    steps: int = 1
    talking: float = 0  # percent of kernel time in collectives, on streams of their own
    awaited: float = 0  # of the collectives: the part for which the next kernel waits
    copies: int = 0  # that take part of the device's streams, 2 us each
    queries: int = 0  # of events, by a thread of its own
    tried: int = 0  # kernels that are tried on other streams, each waited for
    blocks: int = 0  # device memory that is allocated and freed
    graphs: bool = False  # a launch for all kernels of a step
    ahead: bool = False  # the host waits for nothing until all is launched


PATTERNS = (
    Pattern("forward", 1211, 4330, 54, 76,
            (1.3, 1.8, 3.0, 12.9, 21.2, 64.6, 1080, 2181, 2371, 2396), 1, 0, 47,
            steps=25, copies=1060, ahead=True),
    Pattern("training", 465, 8568, 170, 536, (3, 3, 4, 9, 17, 41, 96, 572, 6234, 12621), 4, 26.8,
            84, steps=6, talking=37, awaited=0.1, copies=822, queries=3703),
    Pattern("decode", 152.8, 3400, 24, 24, (4.4, 4.6, 5.6, 6.2, 14.4, 136, 156, 165, 277, 277), 1,
            0, 56, steps=8, copies=72, graphs=True),
    Pattern("prefill", 987, 527, 27, 30,
            (4.7, 23.6, 95.5, 133, 811, 2657, 6737, 6813, 6903, 6903), 1, 0, 50,
            copies=7, ahead=True),
    Pattern("autotuning", 5244, 9329, 102, 477, (0.5, 1, 1, 5, 83, 380, 570, 934, 2211, 3219), 13,
            0.8, 19, steps=8, copies=804, tried=450, blocks=56),
    Pattern("allocating", 3393, 2360, 50, 104, (2, 3.8, 5, 52, 136, 341, 527, 2247, 7217, 7238), 1,
            0, 11, steps=4, copies=15, blocks=1410),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What a trace shows, in the units of a pattern."""

    ms: float
    kernels: int
    launches_per_s: float
    us: tuple[float, ...]  # how long kernels take, at the quantiles 0.5, 0.9 and 0.99
    new: float  # percent of kernels whose function and grid were not seen before
    streams: int
    overlap: float
    busy: float


def names() -> tuple[str, ...]:
    """Return the names of all patterns with figures of a recording."""
    return tuple(pattern.name for pattern in PATTERNS)


def make(name: str, seed: int = 1) -> Trace:
    """Return the trace that belongs to a pattern and a seed."""
    if name == DRAWN:
        return _make(draw(seed), f"{name} {seed}")
    for pattern in PATTERNS:
        if pattern.name == name:
            return _make(pattern, f"{name} {seed}")
    raise errors.UsageError(f"pattern {name!r}: must be one of {', '.join((*names(), DRAWN))}")


def draw(seed: int) -> Pattern:
    """Return any pattern: 0.4 to 1.2 s of kernels of 1.2 us to 15 ms, on up to four streams."""
    chance = random.Random(f"{DRAWN} {seed}")
    streams = chance.choice((1, 1, 2, 3, 4, 4))
    median = math.exp(chance.uniform(math.log(4), math.log(400)))
    spread = chance.uniform(0.3, 2.0)
    us = tuple(min(max(1.2, median * math.exp(spread * z)), 15_000) for z in NORMAL)
    mean = statistics.fmean(us[1:6]) * (1 + spread**2 / 4)  # about
    kind = chance.choice(("eager", "eager", "ahead", "graphs"))
    busy = chance.uniform(20, 100)
    ms = chance.uniform(400, 1200)
    kernels = min(max(120, round(10 * ms * busy / mean)), 12_000)
    steps = min(
        chance.choice((6, 10, 25) if kind == "graphs" else (1, 3, 6, 10, 25)), kernels // 20
    )
    functions = chance.choice((5, 30, 150))
    shapes = min(functions * chance.choice((1, 2, 4)), kernels // steps)
    return Pattern(
        f"{DRAWN}-{seed}",
        ms,
        kernels,
        min(functions, shapes),
        shapes,
        us,
        streams,
        0,
        busy,
        steps=steps,
        talking=chance.uniform(10, 50) if streams > 1 and chance.random() < 0.6 else 0,
        awaited=chance.choice((0, 0.1, 0.5, 1)),
        copies=chance.choice((0, 10, 300, 1000)),
        queries=chance.choice((0, 0, 3000)),
        tried=chance.choice((0, 0, 0, 200)) if streams > 1 else 0,
        blocks=chance.choice((0, 0, 100)),
        graphs=kind == "graphs",
        ahead=kind == "ahead",
    )


def _make(pattern: Pattern, seed: str) -> Trace:
    """Find how slowly the host must launch for the trace to last as long as it should."""
    wanted = pattern.ms * MS
    pauses = pattern.steps if pattern.ahead or pattern.graphs else pattern.kernels
    low, high = 0.0, SLOWEST * wanted / pauses
    for _ in range(PACES):
        pace = (low + high) / 2
        trace = _Maker(pattern, seed, pace).make()
        if abs(trace.duration / wanted - 1) < NEAR:
            break
        low, high = (low, pace) if trace.duration > wanted else (pace, high)
    return trace


def measure(trace: Trace) -> Figures:
    """Return what a trace shows."""
    acts = [r for r in trace.records if r.device_start is not None]
    kernels = [r for r in acts if r.kernel is not None]
    took = sorted(r.device_duration for r in kernels)
    launches = sum(r.kind in ("launch", "graph") for r in trace.records)
    union, many = _busy(acts)
    shapes = {(r.kernel, tuple(r.grid or ())) for r in kernels}
    return Figures(
        trace.duration / MS,
        len(kernels),
        launches / trace.duration * 1e9,
        tuple(took[int(q * (len(took) - 1))] / US for q in (0.5, 0.9, 0.99)),
        100 * len(shapes) / len(kernels),
        len({r.stream for r in acts}),
        100 * many / union,
        100 * union / trace.duration,
    )


def _busy(acts: Sequence[TraceRecord]) -> tuple[int, int]:
    """Return the time in which anything ran, and that in which more than one stream did."""
    edges = sorted(
        edge
        for r in acts
        for edge in ((r.device_start or 0, 1, r.stream), (r.device_end, -1, r.stream))
    )
    running: dict[int | None, int] = {}
    union = many = last = 0
    for at, step, stream in edges:
        active = sum(count > 0 for count in running.values())
        union += (at - last) * (active > 0)
        many += (at - last) * (active > 1)
        running[stream] = running.get(stream, 0) + step
        last = at
    return union, many


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """A function with a grid, and about how long it takes."""

    kernel: int
    grid: int
    ns: int
    talks: bool


class _Maker:
    """Draws a trace: a host that launches, streams in order."""

    def __init__(self, pattern: Pattern, seed: str, pace_ns: float) -> None:
        self._pattern, self._chance, self._pace_ns = pattern, random.Random(seed), pace_ns
        self._records: list[TraceRecord] = []
        self._now = 0  # on the launching thread
        self._free = [0] * pattern.streams  # by stream: when its work is done
        self._last: list[int | None] = [None] * pattern.streams
        self._talkers = 0

    def make(self) -> Trace:
        pattern = self._pattern
        kinds = self._draw_kinds()
        for step in range(pattern.steps):
            if pattern.ahead:
                self._now += round(self._pace_ns)
            self._play_step(kinds, step)
        self._add_queries()
        order = sorted(range(len(self._records)), key=lambda n: self._records[n].start)
        place = {number: new for new, number in enumerate(order)}
        records = [self._renumber(self._records[number], place) for number in order]
        duration = max(max(r.end, r.device_end) for r in records)
        kernels = [f"{pattern.name}_{number}" for number in range(pattern.functions)]
        streams = [7, *range(20, 19 + pattern.streams)]
        return Trace(pattern.name, streams, kernels, records, duration)

    def _renumber(self, record: TraceRecord, place: dict[int, int]) -> TraceRecord:
        ref = None if record.ref is None else place[record.ref]
        after = None if record.after is None else place[record.after]
        return dataclasses.replace(record, ref=ref, after=after)

    # --- which kernels

    def _draw_kinds(self) -> list[_Kind]:
        """Return the kernels of one step in their order; those alike take about as long."""
        pattern, chance = self._pattern, self._chance
        count = round(pattern.kernels / pattern.steps)
        took = [self._quantile((n + 0.5) / count) for n in range(count)]
        # Shapes are runs of lengths, of sizes as uneven as in programs.
        weights = [chance.paretovariate(1.0) for _ in range(pattern.shapes)]
        total, edge, edges = sum(weights), 0.0, [0]
        for weight in weights:
            edge += weight / total * (count - pattern.shapes)
            edges.append(round(edge) + len(edges))
        talking = self._talking_from(took)
        kinds: list[_Kind] = []
        for shape in range(pattern.shapes):
            kernel = shape % pattern.functions
            grid = 1 + shape // pattern.functions + 8 * shape
            for ns in took[edges[shape] : edges[shape + 1]]:
                kinds.append(_Kind(kernel, grid, ns, ns >= talking))
        chance.shuffle(kinds)
        return kinds

    def _quantile(self, share: float) -> int:
        """Return how long a kernel takes at a quantile: even in logarithms between those known."""
        known = list(zip((0.0, *QUANTILES), (self._pattern.us[0], *self._pattern.us), strict=True))
        for (left, low), (right, high) in itertools.pairwise(known):
            if share <= right:
                part = (share - left) / (right - left)
                return round(US * math.exp((1 - part) * math.log(low) + part * math.log(high)))
        return round(US * self._pattern.us[-1])

    def _talking_from(self, took: Sequence[int]) -> float:
        """Return from which length on kernels are collectives."""
        wanted = self._pattern.talking / 100 * sum(took)
        found = 0
        for ns in reversed(took):
            if found >= wanted:
                return ns + 1
            found += ns
        return 0

    # --- what the host does

    def _play_step(self, kinds: Sequence[_Kind], step: int) -> None:
        pattern, chance = self._pattern, self._chance
        copies = pattern.copies // pattern.steps
        blocks = pattern.blocks // pattern.steps
        tried = pattern.tried if step == 0 else 0
        if pattern.graphs:
            self._now += round(self._pace_ns)
            self._launch_graph(kinds)
            kinds = []
        every = {
            "copy": max(1, len(kinds) // max(1, copies)),
            "block": max(1, len(kinds) // max(1, blocks)),
        }
        awaited: int | None = None
        for number, kind in enumerate(kinds):
            self._compute()
            if blocks and number % every["block"] == 0:
                for _ in range(max(1, round(blocks / len(kinds)))):
                    self._allocate()
            if copies and number % every["copy"] == 0:
                self._work("d2d", 0, 2 * US)
            if kind.talks and pattern.streams > 1:
                self._talkers += 1
                made = self._launch(kind, 1 + self._talkers % (pattern.streams - 1), self._last[0])
                awaited = made if chance.random() < pattern.awaited else None
            elif number < tried and pattern.streams > 1:
                stream = 1 + number % (pattern.streams - 1)
                self._call("event_record", 0)
                self._call("event_wait", stream)
                made = self._launch(kind, stream, self._last[0])
                self._call("event_record", stream)
                self._call("event_wait", 0)
                awaited = made if chance.random() < AWAITED else None
            else:
                self._launch(kind, 0, awaited)
                awaited = None
            if number < tried and chance.random() < 0.5:
                self._wait("stream_sync", 0)
        self._wait("d2h", 0)

    def _compute(self) -> None:
        """Think before a launch: mostly shortly, at times for long, so that there are bursts."""
        burst = self._chance.random() < BURSTS
        factor = (1 - QUICK * (1 - BURSTS)) / BURSTS if burst else QUICK
        if not self._pattern.ahead:
            self._now += round(self._pace_ns * factor * self._chance.uniform(0.5, 1.5))

    def _launch(self, kind: _Kind, stream: int, after: int | None) -> int:
        jitter = 1 + self._chance.uniform(-JITTER, JITTER)
        return self._work("launch", stream, round(kind.ns * jitter), kind, after)

    def _work(
        self,
        name: str,
        stream: int,
        ns: int,
        kind: _Kind | None = None,
        after: int | None = None,
    ) -> int:
        free = self._free[stream] + BETWEEN_NS if self._free[stream] else 0
        if after is not None:
            free = max(free, self._records[after].device_end + 2 * US)
        begin = max(self._now + LATENCY_NS, free)
        record = TraceRecord(0, self._now, CALL_NS, name, stream, begin, ns, after=after)
        if kind is not None:
            record.kernel, record.grid = kind.kernel, (kind.grid, 1, 1)
            record.block, record.shared = (128 * (1 + kind.kernel % 4), 1, 1), 0
        self._add(record)
        self._free[stream] = begin + ns
        self._last[stream] = len(self._records) - 1
        return len(self._records) - 1

    def _launch_graph(self, kinds: Sequence[_Kind]) -> None:
        self._add(TraceRecord(0, self._now, CALL_NS, "graph", 0))
        graph = len(self._records) - 1
        at = self._records[graph].start + LATENCY_NS
        for kind in kinds:
            node = TraceRecord(None, 0, 0, "node", 0, at, kind.ns, kind.kernel, (kind.grid, 1, 1))
            node.block, node.ref, node.start = (256, 1, 1), graph, self._records[graph].start
            self._records.append(node)
            at = node.device_end + BETWEEN_NS
        self._free[0] = at

    def _call(self, name: str, stream: int | None) -> None:
        self._add(TraceRecord(0, self._now, CALL_NS, name, stream))

    def _allocate(self) -> None:
        self._call("malloc", None)
        self._call("free", None)

    def _wait(self, name: str, stream: int) -> None:
        """Wait for all of a stream, in a copy out or in a call of its own."""
        if name == "d2h":
            number = self._work(name, stream, 2 * US)
            until = self._free[stream]
            self._records[number].duration = max(CALL_NS, until - self._records[number].start)
            self._now = max(self._now, until)
        else:
            self._call(name, stream)
            self._records[-1].duration = max(CALL_NS, self._free[stream] - self._now + CALL_NS)
            self._now = max(self._now, self._free[stream])

    def _add(self, record: TraceRecord) -> None:
        self._records.append(record)
        self._now += CALL_NS

    def _add_queries(self) -> None:
        """Let a thread of its own ask for events all the time."""
        for number in range(self._pattern.queries):
            start = round(self._now * number / self._pattern.queries)
            self._records.append(TraceRecord(1, start, CALL_NS, "event_query"))
