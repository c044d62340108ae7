"""Node rows of the status page, with search, filter and paging. Pure."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.allocator import datatypes, free_capacity
from pyvgpu.status import history

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyvgpu.controller.scheduler.node_info import NodeInfo

ON_A_PAGE = 50
LONGEST_NAME = 253
_NUMBER = re.compile(r"(\d+)")


class Show(enum.Enum):
    """The page's filter of nodes."""

    ALL = "all"
    TROUBLE = "trouble"  # with a problem that needs attention
    ROOM = "room"  # with free capacity
    FULL = "full"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRow:
    """State and allocation of one device."""

    label: str
    model: str
    state: str  # healthy, cordoned or unhealthy
    why: str
    allocated: float  # allocated ratio of its time
    memory: float  # allocated ratio of its memory
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRow:
    """State and allocation of one node."""

    name: str
    state: str  # healthy, full, cordoned, unhealthy, trouble or unknown
    why: str
    devices: tuple[DeviceRow, ...]
    pods: int
    free: bool  # it has free capacity

    @property
    def order(self) -> tuple[tuple[int, int, str], ...]:
        """The natural sort key of its name: node-10 comes after node-9."""
        return _order(self.name)

    @property
    def allocated(self) -> float:
        """The sum of the allocated ratios of its devices' time."""
        return sum(device.allocated for device in self.devices)

    @property
    def memory_bytes(self) -> int:
        """The memory of its devices."""
        return sum(device.memory_bytes for device in self.devices)

    @property
    def allocated_bytes(self) -> float:
        """The allocated memory of its devices."""
        return sum(device.memory * device.memory_bytes for device in self.devices)

    @property
    def troubled(self) -> bool:
        """Whether the node needs attention."""
        return self.state in ("unhealthy", "cordoned", "trouble", "unknown")

    def document(self) -> dict[str, Any]:
        """Return the row as the page takes it."""
        return {
            "name": self.name,
            "state": self.state,
            "why": self.why,
            "model": self.devices[0].model if self.devices else "",
            "allocated": round(self.allocated, 4),
            "memoryBytes": self.memory_bytes,
            "allocatedBytes": round(self.allocated_bytes),
            "pods": self.pods,
            "devices": [
                {
                    "label": device.label,
                    "state": device.state,
                    "allocated": round(device.allocated, 4),
                    "memory": round(device.memory, 4),
                }
                for device in self.devices
            ],
        }


@functools.lru_cache(maxsize=16384)
def _order(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = _NUMBER.split(name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def row_of(info: NodeInfo, agent: str) -> NodeRow:
    """Return the row of a node; *agent* is what is wrong with its agent, or empty."""
    devices = tuple(map(_part, info.free))
    free = any(
        not free_capacity.unfit(room.device, datatypes.ANY) and room.vcore > 0 and room.vmemory > 0
        for room in info.free
    )
    state, why = _state(info, devices, agent, free=free)
    pods = len(info.tenants.keys() | info.placed.keys())
    return NodeRow(info.name, state, why, devices, pods, free)


def _part(room: free_capacity.FreeCapacity) -> DeviceRow:
    device = room.device
    allocated = min(max(1 - room.vcore / datatypes.WHOLE, 0.0), 1.0)
    memory = min(max(1 - room.vmemory / device.memory_bytes, 0.0), 1.0)
    return DeviceRow(
        device.label,
        device.model,
        device.state,
        device.why,
        allocated,
        memory,
        device.memory_bytes,
    )


def _state(
    info: NodeInfo, devices: Sequence[DeviceRow], agent: str, *, free: bool
) -> tuple[str, str]:
    if info.trouble:
        return "trouble", info.trouble
    if not info.unit:
        return "unknown", "it has published no devices: is its agent running?"
    if agent:
        return "trouble", agent
    for state in ("unhealthy", "cordoned"):
        found = [device for device in devices if device.state == state]
        if found:
            what = ", ".join(device.label for device in found)
            return state, f"{what}: {found[0].why}" if found[0].why else what
    return ("healthy", "") if free else ("full", "")


def without_agent(info: NodeInfo) -> list[dict[str, Any]]:
    """Return a node's devices as its agent would report them, with None for what only it knows."""
    held: dict[str, list[datatypes.Holding]] = {}
    for holding in info.held():
        held.setdefault(holding.share.uuid, []).append(holding)
    found = []
    for device, part in zip(info.devices, map(_part, info.free), strict=True):
        found.append(
            {
                "uuid": device.uuid,
                "label": part.label,
                "model": part.model,
                "state": part.state,
                "why": part.why,
                "used": None,
                "allocated": round(part.allocated, 4),
                "memoryBytes": part.memory_bytes,
                "usedBytes": None,
                "allocatedBytes": round(part.memory * part.memory_bytes),
                "lines": _NO_LINES,
                "day": {"seconds": history.STEP_SECONDS, **_NO_LINES},
                "containers": [_holding(holding) for holding in held.get(device.uuid, ())],
            }
        )
    return found


_NO_LINES: Mapping[str, Sequence[int]] = {"used": (), "memoryMiB": ()}


def _holding(held: datatypes.Holding) -> dict[str, Any]:
    namespace, _, pod = held.holder.rpartition("/")
    ratio = held.share.vcore / datatypes.WHOLE
    return {
        "namespace": namespace,
        "pod": pod,
        "container": "",
        "state": "unknown",
        "allocated": ratio,
        "limit": ratio,
        "used": None,
        "allocatedBytes": held.share.vmemory,
        "usedBytes": None,
        "refused": 0,
        "waitedSeconds": 0,
        "processes": 0,
        "lines": _NO_LINES,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class NodeQuery:
    """The page's query for nodes."""

    search: str = ""  # part of the node's name
    show: Show = Show.ALL
    page: int = 1


def read(query: Mapping[str, str]) -> NodeQuery:
    """Parse a query; UsageError if it is not valid."""
    search, show, page = (query.get(key, "") for key in ("search", "show", "page"))
    if len(search) > LONGEST_NAME:
        raise errors.UsageError(
            f"search {search[:20]!r}...: must be a part of a name, of {LONGEST_NAME} letters at "
            "most, such as node-1"
        )
    if show and show not in {choice.value for choice in Show}:
        known = ", ".join(choice.value for choice in Show)
        raise errors.UsageError(f"show {show[:40]!r}: must be one of {known}, such as trouble")
    if page and not (page.isascii() and page.isdecimal() and 1 <= len(page) <= 6 and int(page)):
        raise errors.UsageError(f"page {page[:40]!r}: must be a whole number from 1, such as 2")
    return NodeQuery(search.lower(), Show(show or "all"), int(page or 1))


def chosen(listed: Sequence[NodeRow], wanted: NodeQuery) -> dict[str, Any]:
    """Return one page of the rows that match *wanted*; *listed* is sorted."""
    found = [row for row in listed if wanted.search in row.name.lower() and _is(row, wanted.show)]
    pages = max(-(-len(found) // ON_A_PAGE), 1)
    page = min(wanted.page, pages)
    shown = found[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]
    return {
        "count": len(found),
        "page": page,
        "pages": pages,
        "rows": [row.document() for row in shown],
    }


def _is(row: NodeRow, show: Show) -> bool:
    match show:
        case Show.TROUBLE:
            return row.troubled
        case Show.ROOM:
            return row.free
        case Show.FULL:
            return row.state == "full"
        case Show.ALL:
            return True


def totals(listed: Iterable[NodeRow]) -> dict[str, Any]:
    """Return the sums of all nodes."""
    sums: dict[str, Any] = dict.fromkeys(
        ("nodes", "trouble", "devices", "unhealthy", "cordoned", "memoryBytes", "pods"), 0
    )
    allocated = memory = 0.0
    for row in listed:
        sums["nodes"] += 1
        sums["trouble"] += row.troubled
        sums["devices"] += len(row.devices)
        sums["unhealthy"] += sum(device.state == "unhealthy" for device in row.devices)
        sums["cordoned"] += sum(device.state == "cordoned" for device in row.devices)
        sums["memoryBytes"] += row.memory_bytes
        sums["pods"] += row.pods
        allocated += row.allocated
        memory += row.allocated_bytes
    return {**sums, "allocated": round(allocated, 3), "allocatedBytes": round(memory)}
