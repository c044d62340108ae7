"""Common format of profilers' recordings, and extraction of the trace of one process and device.

A profiler records host calls and device activities, linked by correlation ids. A call's kind is
derived from its name.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.replay.trace import Trace, TraceRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

MOST_THREADS = 24  # more threads are folded into these
NEAR_NS = 5_000  # an activity that starts so soon after another's end may have waited for it

# Kinds of calls of CUDA's runtime and driver API, and of HIP, by name; the first match counts.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("graph", r"GraphLaunch"),
        ("launch", r"LaunchKernel|LaunchCooperative|ExtLaunch|^cudaLaunch"),
        ("memset", r"Memset(?!Params)"),
        ("memcpy", r"Memcpy(?!Params)"),
        ("stream_sync", r"StreamSynchronize"),
        ("event_sync", r"EventSynchronize"),
        ("device_sync", r"(Device|Ctx|Thread)Synchronize"),
        ("event_record", r"EventRecord"),
        ("event_wait", r"StreamWaitEvent"),
        ("event_query", r"(Event|Stream)Query"),
        ("malloc_host", r"HostAlloc|MallocHost|MemAllocHost|HostMalloc"),
        ("malloc", r"^(cuda|hip)Malloc|^cuMemAlloc|^cuMemCreate"),
        ("free", r"^(cuda|hip)Free(?!Host)|^cuMemFree(?!Host)|^cuMemRelease"),
    )
)
_LAUNCHING = frozenset(("launch", "graph", "memset", "memcpy"))


def kind_of(name: str) -> str | None:
    """Return the kind of a call, by its name; None: it does not reach the device."""
    if "GraphAdd" in name or ("Graph" in name and "GraphLaunch" not in name):
        return None
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), None)


@dataclasses.dataclass(slots=True)
class HostCall:
    """A host call; times in ns."""

    process: int
    thread: int
    start: int
    duration: int
    kind: str
    key: Hashable  # shared with its activities
    stream: int | None = None

    @property
    def end(self) -> int:
        """The end of the call."""
        return self.start + self.duration


@dataclasses.dataclass(slots=True)
class DeviceActivity:
    """An activity of a device; times in ns."""

    key: Hashable
    start: int
    duration: int
    kind: str  # kernel, memset, or the direction of a copy: h2d, d2h, d2d, memcpy
    device: int
    stream: int
    name: str
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    shared: int = 0

    @property
    def end(self) -> int:
        """The end of the activity."""
        return self.start + self.duration


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """The contents of a profiler's file."""

    calls: Sequence[HostCall]
    activities: Sequence[DeviceActivity]
    steps: Sequence[tuple[int, int]]  # of the program: start and end of each
    gpus: dict[int, str]  # names by device


@dataclasses.dataclass(frozen=True, slots=True)
class TraceChoice:
    """The process and device of a trace, and the alternatives."""

    process: int
    device: int
    processes: tuple[int, ...]
    devices: tuple[int, ...]  # of the process


def choose(
    recording: Recording, path: object, process: int | None, device: int | None
) -> TraceChoice:
    """Return the requested process and device, else those with most work."""
    owners = {call.key: call.process for call in recording.calls}
    busy: collections.Counter[tuple[int, int]] = collections.Counter()
    for one in recording.activities:
        if one.key in owners:
            busy[owners[one.key], one.device] += one.duration
    if not recording.activities:
        raise errors.DataError(
            f"{path}: has no GPU activity; it must be recorded with the GPU's kernels, such "
            "as torch.profiler with ProfilerActivity.CUDA, or `nsys profile --trace cuda`"
        )
    if not busy:
        raise errors.DataError(
            f"{path}: has no calls that launched its GPU activity; it must be recorded with "
            "host calls, such as torch.profiler with ProfilerActivity.CPU and CUDA"
        )
    processes = _by_work((pair[0], count) for pair, count in busy.items())
    chosen = _chosen("--process", process, processes, path)
    devices = _by_work((pair[1], n) for pair, n in busy.items() if pair[0] == chosen)
    return TraceChoice(chosen, _chosen("--device", device, devices, path), processes, devices)


def _by_work(counts: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    total: collections.Counter[int] = collections.Counter()
    for which, count in counts:
        total[which] += count
    return tuple(which for which, _ in total.most_common())


def _chosen(option: str, asked: int | None, there: Sequence[int], path: object) -> int:
    if asked is None:
        return there[0]
    if asked not in there:
        listed = ", ".join(map(str, sorted(there)))
        raise errors.UsageError(
            f"{option} {asked}: {path} has work of {listed}, such as {option} {there[0]}"
        )
    return asked


def make_trace(name: str, recording: Recording, choice: TraceChoice) -> Trace:
    """Return the trace of one process and device; of whole steps, if any are marked."""
    return _Builder(name, recording, choice).build()


class _Builder:
    def __init__(self, name: str, recording: Recording, choice: TraceChoice) -> None:
        self._name, self._recording, self._choice = name, recording, choice
        own = [call for call in recording.calls if call.process == choice.process]
        self._calls, self._names = _without_nested(own)
        self._work: dict[Hashable, list[DeviceActivity]] = {}
        for one in sorted(recording.activities, key=lambda activity: activity.start):
            key = self._names.get(one.key, one.key)
            if one.device == choice.device:
                self._work.setdefault(key, []).append(one)
        self._streams: dict[int, int] = {}
        self._kernels: dict[str, int] = {}
        self._threads: dict[int, int] = {}
        self._records: list[TraceRecord] = []
        self._places: dict[int, int] = {}  # of activities, by their identity

    def build(self) -> Trace:
        begin, end = self._window()
        kept = [call for call in self._calls if begin <= call.start < end]
        for call in sorted(kept, key=lambda each: each.start):
            self._add(call)
        if not self._places:
            raise errors.DataError(
                f"{self._name}: no GPU activity was launched within its steps; it must be "
                "recorded until the device is done, such as with torch.cuda.synchronize()"
            )
        self._infer_waits()
        shift = min(record.start for record in self._records if record.thread is not None)
        for record in self._records:
            record.start -= shift
            if record.device_start is not None:
                record.device_start -= shift
        steps = [s for s in self._recording.steps if begin <= s[0] < end]
        duration = max(max(record.end, record.device_end) for record in self._records)
        return Trace(
            self._name,
            list(self._streams),
            list(self._kernels),
            self._records,
            duration,
            len(steps),
            self._recording.gpus.get(self._choice.device, ""),
        )

    def _window(self) -> tuple[int, int]:
        steps = self._recording.steps
        launched = [call.start for call in self._calls if call.key in self._work]
        if steps:
            begin, end = min(s[0] for s in steps), max(s[1] for s in steps)
            if any(begin <= start < end for start in launched):
                return begin, end
        return min(call.start for call in self._calls), max(c.start for c in self._calls) + 1

    def _add(self, call: HostCall) -> None:
        work = self._work.get(call.key, ()) if call.kind in _LAUNCHING else ()
        if call.kind in _LAUNCHING and not work:
            return  # its work was on another device, or was not recorded
        thread = self._threads.setdefault(call.thread, len(self._threads) % MOST_THREADS)
        if call.kind == "graph" or len(work) > 1:
            graph = len(self._records)
            self._records.append(TraceRecord(thread, call.start, call.duration, "graph"))
            for one in work:
                self._append(one, TraceRecord(None, call.start, 0, "node", ref=graph))
            return
        record = TraceRecord(thread, call.start, call.duration, call.kind)
        if work:
            record.kind = "launch" if work[0].kind == "kernel" else work[0].kind
            self._append(work[0], record)
            return
        if call.stream is not None:
            record.stream = self._stream(call.stream)
        self._records.append(record)

    def _append(self, one: DeviceActivity, record: TraceRecord) -> None:
        record.stream = self._stream(one.stream)
        record.device_start, record.device_duration = one.start, one.duration
        if one.kind == "kernel":
            record.kernel = self._kernels.setdefault(one.name, len(self._kernels))
            record.grid, record.block, record.shared = one.grid, one.block, one.shared
        elif record.thread is None:
            record.kind = "node_memset" if one.kind == "memset" else "node_d2d"
        self._places[id(one)] = len(self._records)
        self._records.append(record)

    def _stream(self, number: int) -> int:
        return self._streams.setdefault(number, len(self._streams))

    def _infer_waits(self) -> None:
        """Make an activity that started late wait for one of another stream that ended then."""
        order = sorted(
            (r.device_start, number)
            for number, r in enumerate(self._records)
            if r.device_start is not None
        )
        # Streams are in order, so only the last two of each can have ended just then.
        latest: dict[int | None, collections.deque[int]] = {}
        for start, number in order:
            record = self._records[number]
            own = latest.setdefault(record.stream, collections.deque(maxlen=2))
            free = self._records[own[-1]].device_end if own else record.start
            if start - max(record.start, free) > NEAR_NS:
                ended = (
                    (self._records[other].device_end, other)
                    for stream, others in latest.items()
                    for other in others
                    if stream != record.stream
                )
                near = max((e for e in ended if start - NEAR_NS <= e[0] <= start), default=None)
                record.after = near[1] if near else None
            own.append(number)


def _without_nested(calls: Sequence[HostCall]) -> tuple[list[HostCall], dict[Hashable, Hashable]]:
    """Return the outermost calls, and the keys of nested calls mapped to theirs.

    The runtime API calls the driver API, and some profilers record both.
    """
    kept: list[HostCall] = []
    names: dict[Hashable, Hashable] = {}
    outer: dict[int, HostCall] = {}
    for call in sorted(calls, key=lambda each: (each.start, -each.duration)):
        around = outer.get(call.thread)
        if around is not None and call.end <= around.end and around.kind == call.kind:
            names[call.key] = around.key
            continue
        outer[call.thread] = call
        kept.append(call)
    return kept, names


def first_of(kinds: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Return a function that finds the direction of a copy by words in its name."""
    table = tuple(kinds)

    def kind(text: str) -> str:
        lower = text.lower()
        return next((way for word, way in table if word in lower), "memcpy")

    return kind
