"""The player's program, and its binary format (csrc/programs/replay/program.h)."""

from __future__ import annotations

import dataclasses
import enum
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = b"replay1\0"
NONE = 0xFFFFFFFF


class CallKind(enum.IntEnum):
    """Kinds of calls: enum program_kind."""

    LAUNCH = 0
    GRAPH = 1
    COPY_IN = 2
    COPY_OUT = 3
    COPY_ON = 4
    FILL = 5
    STREAM_SYNC = 6
    DEVICE_SYNC = 7
    EVENT_SYNC = 8
    EVENT_RECORD = 9
    EVENT_WAIT = 10
    EVENT_QUERY = 11
    ALLOCATE = 12
    ALLOCATE_HOST = 13
    FREE = 14


BLOCKS, GAP_OF_FIRST = 1, 2


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchShape:
    """The launch configuration of a kernel."""

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0

    def pack(self) -> tuple[int, ...]:
        """Return the fields of struct program_shape."""
        return (self.kernel, *self.grid, *self.block, self.shared_bytes)


NO_SHAPE = LaunchShape(0, (1, 1, 1), (1, 1, 1))


@dataclasses.dataclass(slots=True)
class ThreadCall:
    """A call of one thread."""

    kind: CallKind
    order: int  # its position among all records
    gap_ns: int = 0
    ns: int = 0
    shape: LaunchShape = NO_SHAPE
    stream: int = 0
    what: int = 0  # the event or graph
    flags: int = 0
    first: tuple[int, int] | None = None  # a thread, and how many of its calls must be done
    second: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GraphKernel:
    """A kernel of a graph."""

    ns: int
    shape: LaunchShape
    after: tuple[int, ...] = ()  # nodes before it in the same graph, two at most


@dataclasses.dataclass(frozen=True, slots=True)
class PlayerProgram:
    """The program of one player."""

    threads: Sequence[Sequence[ThreadCall]]
    graphs: Sequence[Sequence[GraphKernel]]
    streams: int
    kernels: Sequence[int]  # maximum shared memory per launch of each, bytes
    events: int
    records: int  # of the trace; greater than the order of any call

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        calls = [call for thread in self.threads for call in thread]
        nodes = [node for graph in self.graphs for node in graph]
        counts = (
            len(self.threads), len(calls), self.streams, len(self.kernels), self.events,
            len(self.graphs), len(nodes), self.records,
        )  # fmt: skip
        return b"".join(
            (
                MAGIC,
                struct.pack("=8I", *counts),
                _ranges(self.threads),
                _ranges(self.graphs),
                *map(_pack_call, calls),
                *map(_pack_node, nodes),
                struct.pack(f"={len(self.kernels)}I", *self.kernels),
            )
        )


def _ranges(groups: Sequence[Sequence[object]]) -> bytes:
    parts, first = [], 0
    for group in groups:
        parts.append(struct.pack("=2I", first, len(group)))
        first += len(group)
    return b"".join(parts)


def _pack_call(call: ThreadCall) -> bytes:
    first, second = call.first or (NONE, 0), call.second or (NONE, 0)
    return struct.pack(
        "=2Q18I", call.gap_ns, call.ns, *call.shape.pack(), *first, *second,
        call.kind, call.flags, call.stream, call.what, call.order, 0,
    )  # fmt: skip


def _pack_node(node: GraphKernel) -> bytes:
    after = (*node.after, NONE, NONE)[:2]
    return struct.pack("=Q10I", node.ns, *node.shape.pack(), *after)
