"""Compiles a recording to a program for the player.

Some facts are not recorded: the stream of a wait, the event of a query, and that one thread
waited for another. They are inferred from times: a wait ends no sooner than the work that it waits
for, and a thread that continues with a stream that another thread has just used waited for that
thread. All else is played as recorded; the duration of a call is up to the driver.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from pyvgpu.replay import trace as traces
from pyvgpu.replay.program import (
    BLOCKS,
    GAP_OF_FIRST,
    CallKind,
    GraphKernel,
    LaunchShape,
    PlayerProgram,
    ThreadCall,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.replay.trace import Trace, TraceRecord

SLACK_NS = 2_000  # tolerance of recorded times
LONG_CALL_NS = 100_000  # a copy to the device that blocks its thread this long is synchronous
RECENT_EVENTS = 64
MOST_SHARED_BYTES = 227 << 10
DONE = 0  # an event that is complete from the beginning

_KINDS = {
    "launch": CallKind.LAUNCH,
    "graph": CallKind.GRAPH,
    "h2d": CallKind.COPY_IN,
    "d2h": CallKind.COPY_OUT,
    "d2d": CallKind.COPY_ON,
    "p2p": CallKind.COPY_ON,
    "memcpy": CallKind.COPY_ON,
    "memset": CallKind.FILL,
    "stream_sync": CallKind.STREAM_SYNC,
    "device_sync": CallKind.DEVICE_SYNC,
    "event_sync": CallKind.EVENT_SYNC,
    "event_record": CallKind.EVENT_RECORD,
    "event_wait": CallKind.EVENT_WAIT,
    "event_query": CallKind.EVENT_QUERY,
    "malloc": CallKind.ALLOCATE,
    "malloc_host": CallKind.ALLOCATE_HOST,
    "free": CallKind.FREE,
}


@dataclasses.dataclass(slots=True)
class _Issued:
    """The last call that used a stream."""

    thread: int
    number: int  # calls of its thread up to and including it
    end: int


@dataclasses.dataclass(slots=True)
class _Event:
    """A recorded event, and when the work before it was complete."""

    number: int
    complete: int
    thread: int


def compile_trace(trace: Trace) -> PlayerProgram:
    """Return the program for one repetition of the recording."""
    return _Compiler(trace).compile()


class _Compiler:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._records = trace.records
        self._threads: list[list[ThreadCall]] = []
        self._ends: list[int] = []  # by thread: the end of its last call
        self._streams: dict[int, int] = {}  # the trace's streams -> the player's
        self._player_streams = 1
        self._kernels: dict[int | str, int] = {}
        self._shared: list[int] = []
        self._graphs: list[list[GraphKernel]] = []
        self._graph_numbers: dict[object, int] = {}
        self._graph_uses: dict[int, list[list[int]]] = {}
        self._events = 1
        self._recent: list[_Event] = []
        self._last_stream: dict[int, int] = {}  # by thread
        self._issued: dict[int, _Issued] = {}  # by the player's stream
        self._pending: dict[int, int] = {}  # by the player's stream: when all its work is done
        self._waited = self._find_waited()
        self._event_of: dict[int, tuple[int, int, int]] = {}  # a record's: event, thread, number
        self._nodes = self._find_nodes()

    def compile(self) -> PlayerProgram:
        for number, record in enumerate(self._records):
            if record.thread is not None and record.kind in _KINDS:
                self._add(number, record, record.thread)
        self._average_graphs()
        return PlayerProgram(
            self._threads or [[]],
            self._graphs,
            self._player_streams,
            self._shared,
            self._events,
            len(self._records),
        )

    # --- preparation

    def _find_waited(self) -> set[int]:
        """Return the calls after which an event must be recorded."""
        found = set()
        for number, record in enumerate(self._records):
            before = self._issuer(record.after)
            own = self._issuer(number)
            if before is not None and own is not None and before < own:
                found.add(before)
        return found

    def _issuer(self, number: int | None) -> int | None:
        """Return the host call that launched a record."""
        if number is None:
            return None
        record = self._records[number]
        if record.thread is not None:
            return number
        return record.ref if record.kind in traces.NODES else None

    def _find_nodes(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, record in enumerate(self._records):
            if record.ref is not None and record.thread is None:
                found.setdefault(record.ref, []).append(number)
        return found

    # --- streams, kernels, graphs

    def _stream(self, recorded: int) -> int:
        if recorded not in self._streams:
            if self._trace.streams[recorded] in traces.DEFAULT_STREAMS:
                self._streams[recorded] = 0
            else:
                self._streams[recorded] = self._player_streams
                self._player_streams += 1
        return self._streams[recorded]

    def _shape(self, record: TraceRecord) -> LaunchShape:
        name: int | str = record.kind if record.kernel is None else record.kernel
        kernel = self._kernels.setdefault(name, len(self._kernels))
        if kernel == len(self._shared):
            self._shared.append(0)
        shared = min(max(record.shared or 0, 0), MOST_SHARED_BYTES)
        self._shared[kernel] = max(self._shared[kernel], shared)
        return LaunchShape(kernel, _grid(record.grid), _block(record.block), shared)

    def _graph(self, numbers: Sequence[int]) -> int:
        """Return the graph with these nodes; equal graphs are shared."""
        nodes: list[tuple[LaunchShape, tuple[int, ...]]] = []
        last: dict[int | None, int] = {}
        places: dict[int | None, int] = {}
        for place, number in enumerate(numbers):
            record = self._records[number]
            places[number] = place
            before = {last[record.stream]} if record.stream in last else set()
            if record.after in places:
                before.add(places[record.after])
            last[record.stream] = place
            nodes.append((self._shape(record), tuple(sorted(before))))
        key = tuple(nodes)
        graph = self._graph_numbers.setdefault(key, len(self._graph_numbers))
        if graph == len(self._graphs):
            self._graphs.append([GraphKernel(0, shape, after) for shape, after in nodes])
        durations = [self._records[number].device_duration for number in numbers]
        self._graph_uses.setdefault(graph, []).append(durations)
        return graph

    def _average_graphs(self) -> None:
        """Give each node its mean duration, so that the sum over all launches stays the same."""
        for graph, uses in self._graph_uses.items():
            means = [round(sum(each) / len(uses)) for each in zip(*uses, strict=True)]
            self._graphs[graph] = [
                dataclasses.replace(node, ns=ns)
                for node, ns in zip(self._graphs[graph], means, strict=True)
            ]

    # --- calls

    def _add(self, number: int, record: TraceRecord, thread: int) -> None:
        while len(self._threads) <= thread:
            self._threads.append([])
            self._ends.append(0)
        call = ThreadCall(_KINDS[record.kind], number)
        uses = self._describe(number, record, call)
        if call.kind == CallKind.GRAPH and not self._nodes.get(number):
            return  # its work was not recorded
        self._time(record, thread, call, uses)
        own = self._threads[thread]
        for event, other, count in self._events_before(number):
            own.append(_split_wait(call, event, (other, count) if other != thread else None))
        own.append(call)
        self._ends[thread] = record.end
        if uses is not None:
            self._issued[uses] = _Issued(thread, len(own), record.end)
            self._last_stream[thread] = uses
        if number in self._waited:
            own.append(
                ThreadCall(CallKind.EVENT_RECORD, number, stream=call.stream, what=self._events)
            )
            self._event_of[number] = (self._events, thread, len(own))
            self._events += 1

    def _describe(self, number: int, record: TraceRecord, call: ThreadCall) -> int | None:
        """Fill in the details of a call; return the stream that it uses, if any."""
        thread = record.thread or 0
        own = self._last_stream.get(thread, 0)
        given = None if record.stream is None else self._stream(record.stream)
        if call.kind <= CallKind.FILL:
            return self._describe_work(number, record, call, given)
        if call.kind == CallKind.STREAM_SYNC:
            found = self._waited_stream(record, own) if given is None else given
            if found is None:
                call.kind = CallKind.EVENT_SYNC
            call.stream = found or 0
            return found
        if call.kind == CallKind.EVENT_RECORD:
            call.stream = own if given is None else given
            call.what = self._events
            complete = self._pending.get(call.stream, 0)
            event = _Event(self._events, complete, thread)
            self._recent = [*self._recent[1 - RECENT_EVENTS :], event]
            self._events += 1
        elif call.kind == CallKind.EVENT_SYNC:
            call.what = self._waited_event(record)
        elif call.kind == CallKind.EVENT_QUERY:
            call.what = self._recent[-1].number if self._recent else DONE
        elif call.kind == CallKind.EVENT_WAIT:
            call.stream = own if given is None else given
        return None

    def _describe_work(
        self, number: int, record: TraceRecord, call: ThreadCall, given: int | None
    ) -> int | None:
        nodes = self._nodes.get(number, []) if call.kind == CallKind.GRAPH else []
        if nodes:
            call.what = self._graph(nodes)
            first = self._records[nodes[0]].stream
            call.stream = self._stream(first or 0) if given is None else given
            ends = max(self._records[node].device_end for node in nodes)
        else:
            call.stream = given or 0
            call.ns = record.device_duration
            ends = record.device_end
            if call.kind == CallKind.LAUNCH:
                call.shape = self._shape(record)
            elif _blocks(record):
                call.flags |= BLOCKS
        self._pending[call.stream] = max(self._pending.get(call.stream, 0), ends)
        return call.stream

    def _waited_stream(self, record: TraceRecord, own: int) -> int | None:
        """Return the stream that the call has waited for; None: no stream with work."""
        over = {s: end for s, end in self._pending.items() if end <= record.end + SLACK_NS}
        if not over:
            return None
        last = max(over, key=lambda stream: over[stream])
        return own if own in over and over[last] <= record.start else last

    def _waited_event(self, record: TraceRecord) -> int:
        over = [e for e in self._recent if e.complete <= record.end + SLACK_NS]
        if not over:
            return DONE
        last = max(over, key=lambda event: event.complete)
        if last.complete > record.start:
            return last.number
        own = [event for event in over if event.thread == record.thread]
        return (own or over)[-1].number

    def _time(self, record: TraceRecord, thread: int, call: ThreadCall, uses: int | None) -> None:
        """Set the gap before the call: after the last call of its thread, or of another one."""
        began = self._ends[thread]
        last = None if uses is None else self._issued.get(uses)
        if last is not None and last.thread != thread and last.end <= record.start:
            call.first = (last.thread, last.number)
            if last.end > began:
                call.flags |= GAP_OF_FIRST
                began = last.end
        call.gap_ns = max(0, record.start - began)

    def _events_before(self, number: int) -> list[tuple[int, int, int]]:
        """Return the events that the work of a call waits for, each once."""
        found = {}
        for each in (number, *self._nodes.get(number, ())):
            before = self._issuer(self._records[each].after)
            if before is not None and before in self._event_of:
                found[before] = self._event_of[before]
        return list(found.values())


def _split_wait(call: ThreadCall, event: int, recorded: tuple[int, int] | None) -> ThreadCall:
    """Return an event wait to insert before a call, and move the call's gap to it.

    *recorded*: the thread that records the event, and the number of its calls done by then.
    """
    wait = ThreadCall(CallKind.EVENT_WAIT, call.order, call.gap_ns, stream=call.stream, what=event)
    wait.flags = call.flags & GAP_OF_FIRST
    wait.first, wait.second = call.first, recorded
    call.gap_ns, call.first = 0, None
    call.flags &= ~GAP_OF_FIRST
    return wait


def _blocks(record: TraceRecord) -> bool:
    """Return whether a copy has blocked its thread until it was done."""
    if record.kind not in ("h2d", "d2h") or record.end + SLACK_NS < record.device_end:
        return False
    return record.kind == "d2h" or record.duration >= LONG_CALL_NS


def _grid(recorded: Sequence[int] | None) -> tuple[int, int, int]:
    x, y, z = (*(recorded or ()), 1, 1, 1)[:3]
    return max(1, min(x, 2**31 - 1)), max(1, min(y, 65535)), max(1, min(z, 65535))


def _block(recorded: Sequence[int] | None) -> tuple[int, int, int]:
    x, y, z = (*(recorded or (256,)), 1, 1, 1)[:3]
    shape = max(1, min(x, 1024)), max(1, min(y, 1024)), max(1, min(z, 64))
    return shape if math.prod(shape) <= 1024 else (1024, 1, 1)
