"""What the page says of each node, and which of the nodes somebody wants to see. Pure."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.allocator import facts, rooms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyvgpu.controller.scheduler.stands import Stand

ON_A_PAGE = 50
LONGEST_NAME = 253
_NUMBER = re.compile(r"(\d+)")


class Show(enum.Enum):
    """Which nodes somebody wants to see."""

    ALL = "all"
    TROUBLE = "trouble"  # with something that somebody should look at
    ROOM = "room"  # where something can still be given out
    FULL = "full"


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """How one device stands."""

    label: str
    model: str
    state: str  # well, cordoned or sick
    why: str
    promised: float  # ratio of its time
    memory: float  # ratio of its memory that is promised
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """How one node stands."""

    name: str
    state: str  # well, full, cordoned, sick, trouble or unknown
    why: str
    devices: tuple[Part, ...]
    pods: int
    free: bool  # something can still be given out

    @property
    def order(self) -> tuple[tuple[int, int, str], ...]:
        """Where it stands among others: node-10 comes after node-9."""
        return _order(self.name)

    @property
    def promised(self) -> float:
        """Sum of the ratios of its devices' time."""
        return sum(it.promised for it in self.devices)

    @property
    def memory_bytes(self) -> int:
        """Memory of its devices."""
        return sum(it.memory_bytes for it in self.devices)

    @property
    def promised_bytes(self) -> float:
        """Memory that is promised of its devices."""
        return sum(it.memory * it.memory_bytes for it in self.devices)

    @property
    def troubled(self) -> bool:
        """Whether somebody should look at it."""
        return self.state in ("sick", "cordoned", "trouble", "unknown")

    def document(self) -> dict[str, Any]:
        """Return it as the page takes it."""
        return {
            "name": self.name,
            "state": self.state,
            "why": self.why,
            "model": self.devices[0].model if self.devices else "",
            "promised": round(self.promised, 4),
            "memoryBytes": self.memory_bytes,
            "promisedBytes": round(self.promised_bytes),
            "pods": self.pods,
            "devices": [
                {
                    "label": it.label,
                    "state": it.state,
                    "promised": round(it.promised, 4),
                    "memory": round(it.memory, 4),
                }
                for it in self.devices
            ],
        }


@functools.lru_cache(maxsize=16384)
def _order(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = _NUMBER.split(name)
    return tuple((0, int(it), "") if it.isdecimal() else (1, 0, it) for it in parts)


def row_of(stand: Stand, agent: str) -> Row:
    """Return how a node stands; *agent* is what is wrong with its agent, if anything is."""
    devices = tuple(map(_part, stand.free))
    free = any(
        not rooms.unfit(it.device, facts.ANY) and it.vcore > 0 and it.vmemory > 0
        for it in stand.free
    )
    state, why = _state(stand, devices, agent, free=free)
    pods = len(stand.tenants.keys() | stand.placed.keys())
    return Row(stand.name, state, why, devices, pods, free)


def _part(room: rooms.Room) -> Part:
    device = room.device
    promised = min(max(1 - room.vcore / facts.WHOLE, 0.0), 1.0)
    memory = min(max(1 - room.vmemory / device.memory_bytes, 0.0), 1.0)
    return Part(
        device.label,
        device.model,
        device.state,
        device.why,
        promised,
        memory,
        device.memory_bytes,
    )


def _state(stand: Stand, devices: Sequence[Part], agent: str, *, free: bool) -> tuple[str, str]:
    if stand.trouble:
        return "trouble", stand.trouble
    if not stand.unit:
        return "unknown", "it has published no devices: does its agent run?"
    if agent:
        return "trouble", agent
    for state in ("sick", "cordoned"):
        found = [it for it in devices if it.state == state]
        if found:
            what = ", ".join(it.label for it in found)
            return state, f"{what}: {found[0].why}" if found[0].why else what
    return ("well", "") if free else ("full", "")


def without_agent(stand: Stand) -> list[dict[str, Any]]:
    """Return a node's devices as its agent would say them, as far as is known without it."""
    held: dict[str, list[facts.Holding]] = {}
    for it in stand.held():
        held.setdefault(it.share.uuid, []).append(it)
    found = []
    for device, part in zip(stand.devices, map(_part, stand.free), strict=True):
        found.append(
            {
                "uuid": device.uuid,
                "label": part.label,
                "model": part.model,
                "state": part.state,
                "why": part.why,
                "used": None,
                "promised": round(part.promised, 4),
                "memoryBytes": part.memory_bytes,
                "usedBytes": None,
                "promisedBytes": round(part.memory * part.memory_bytes),
                "lines": _NO_LINES,
                "containers": [_holding(it) for it in held.get(device.uuid, ())],
            }
        )
    return found


_NO_LINES: Mapping[str, Sequence[int]] = {"used": (), "memoryMiB": ()}


def _holding(held: facts.Holding) -> dict[str, Any]:
    namespace, _, pod = held.holder.rpartition("/")
    ratio = held.share.vcore / facts.WHOLE
    return {
        "namespace": namespace,
        "pod": pod,
        "container": "",
        "state": "unknown",
        "promised": ratio,
        "limit": ratio,
        "used": None,
        "promisedBytes": held.share.vmemory,
        "usedBytes": None,
        "refused": 0,
        "waitedSeconds": 0,
        "processes": 0,
        "lines": _NO_LINES,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants to see of the nodes."""

    search: str = ""  # a part of the name
    show: Show = Show.ALL
    page: int = 1


def read(query: Mapping[str, str]) -> Wanted:
    """Return what a query asks for; UsageError for what is none."""
    search, show, page = (query.get(it, "") for it in ("search", "show", "page"))
    if len(search) > LONGEST_NAME:
        raise errors.UsageError(
            f"search {search[:20]!r}...: must be a part of a name, of {LONGEST_NAME} letters at "
            "most, such as node-1"
        )
    if show and show not in {it.value for it in Show}:
        known = ", ".join(it.value for it in Show)
        raise errors.UsageError(f"show {show[:40]!r}: must be one of {known}, such as trouble")
    if page and not (page.isascii() and page.isdecimal() and 1 <= len(page) <= 6 and int(page)):
        raise errors.UsageError(f"page {page[:40]!r}: must be a whole number from 1, such as 2")
    return Wanted(search.lower(), Show(show or "all"), int(page or 1))


def chosen(listed: Sequence[Row], wanted: Wanted) -> dict[str, Any]:
    """Return those of *listed*, which have their order, that are *wanted*, page by page."""
    found = [it for it in listed if wanted.search in it.name.lower() and _is(it, wanted.show)]
    pages = max(-(-len(found) // ON_A_PAGE), 1)
    page = min(wanted.page, pages)
    shown = found[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]
    return {
        "count": len(found),
        "page": page,
        "pages": pages,
        "rows": [it.document() for it in shown],
    }


def _is(row: Row, show: Show) -> bool:
    match show:
        case Show.TROUBLE:
            return row.troubled
        case Show.ROOM:
            return row.free
        case Show.FULL:
            return row.state == "full"
        case Show.ALL:
            return True


def totals(listed: Iterable[Row]) -> dict[str, Any]:
    """Return the sums of all nodes."""
    sums: dict[str, Any] = dict.fromkeys(
        ("nodes", "trouble", "devices", "sick", "cordoned", "memoryBytes", "pods"), 0
    )
    promised = memory = 0.0
    for row in listed:
        sums["nodes"] += 1
        sums["trouble"] += row.troubled
        sums["devices"] += len(row.devices)
        sums["sick"] += sum(it.state == "sick" for it in row.devices)
        sums["cordoned"] += sum(it.state == "cordoned" for it in row.devices)
        sums["memoryBytes"] += row.memory_bytes
        sums["pods"] += row.pods
        promised += row.promised
        memory += row.promised_bytes
    return {**sums, "promised": round(promised, 3), "promisedBytes": round(memory)}
