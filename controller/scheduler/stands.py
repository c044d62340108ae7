"""What a node has and who has it: its devices, and everything that is promised of them.

What is free is added up anew when something has changed and somebody asks: so nothing can leak,
whatever came in what order.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import capacity, facts, place, rooms
from pyvgpu.controller.scheduler import asks, choices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyvgpu.allocator import annotations as notes

_NOBODY: frozenset[str] = frozenset()


class State(enum.Enum):
    """How sure it is that a pod is where it is promised to be."""

    EXPECTED = "expected"  # it will probably be bound there
    CLAIMED = "claimed"  # others are being ended there for its sake
    BINDING = "binding"  # the API server has been asked to bind it there
    BOUND = "bound"  # the API server has it there


PASSING = frozenset({State.EXPECTED, State.CLAIMED})  # those that end by themselves


@dataclasses.dataclass(slots=True)
class Promise:
    """What is promised to one pod on one node."""

    pod: asks.Pod
    node: str
    state: State
    held: tuple[facts.Holding, ...] | None  # None: it is there, and nobody has said on what
    shares: Mapping[str, tuple[facts.Share, ...]] | None = None  # by container; None: not ours
    until: float = math.inf  # seconds, when it ends, or is in doubt if it is BINDING


class Stand:
    """One node."""

    __slots__ = (
        "_capacity",
        "_free",
        "_strays",
        "devices",
        "minors",
        "name",
        "placed",
        "tenants",
        "trouble",
        "unit",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.unit = 0  # bytes of one vmemory; 0: the node has said nothing
        self.devices: tuple[facts.Device, ...] = ()
        self.minors: Mapping[str, int] = {}  # by UUID, where known
        self.trouble = ""  # why what it says cannot be believed
        self.placed: Mapping[str, choices.Shares] = {}  # by its agent, by uid
        self.tenants: dict[str, Promise] = {}  # by uid
        self._free: tuple[rooms.Room, ...] | None = None
        self._capacity: capacity.Capacity | None = None
        self._strays: dict[str, tuple[facts.Holding, ...]] = {}

    def tell(self, told: notes.Published | None, trouble: str) -> None:
        """Note what the node says of itself; None if that is nothing, or *trouble*."""
        self.unit = told.memory_unit if told else 0
        self.devices = told.devices if told else ()
        self.minors = told.minors if told else {}
        self.placed = told.placed if told else {}
        self.trouble = trouble
        self.changed()

    def changed(self) -> None:
        """Let what is free be added up anew."""
        self._free = self._capacity = None

    @property
    def free(self) -> tuple[rooms.Room, ...]:
        """What is free of each device."""
        if self._free is None:
            self._strays = {}
            known = tuple(self._known(_NOBODY))
            patience = place.Patience(0)  # this is done again with every change
            for uid, wanted in self._lost():
                room = rooms.of(facts.Node(self.devices, known))
                placed = place.find(room, wanted, patience)
                if placed:
                    holder = self.tenants[uid].pod.key
                    self._strays[uid] = place.holdings(wanted.containers, placed, holder)
                    known = (*known, *self._strays[uid])
            self._free = rooms.of(facts.Node(self.devices, known))
        return self._free

    @property
    def capacity(self) -> capacity.Capacity:
        """What is free of each device, in numbers."""
        if self._capacity is None:
            self._capacity = rooms.numbers(self.unit, self.free)
        return self._capacity

    def without(self, uids: Collection[str]) -> tuple[rooms.Room, ...]:
        """Return what would be free if these pods had nothing here."""
        if not any(uid in self.tenants or uid in self.placed for uid in uids):
            return self.free
        return rooms.of(facts.Node(self.devices, tuple(self.held(uids))))

    def held(self, but: Collection[str] = _NOBODY) -> Iterator[facts.Holding]:
        """Give what is held here, by others than the pods *but*."""
        _ = self.free  # so that the lost ones are somewhere
        yield from self._known(but)
        for uid, held in self._strays.items():
            if uid not in but:
                yield from held

    def held_by(self, uid: str) -> tuple[facts.Holding, ...]:
        """Return what a pod has here."""
        promise = self.tenants.get(uid)
        if uid in self.placed:
            return self._placed(uid)
        if promise is None:
            return ()
        if promise.held is not None:
            return promise.held
        _ = self.free
        return self._strays.get(uid, ())

    def wanted(self, pod: asks.Pod, packing: facts.Packing | None = None) -> facts.Pod:
        """Return what *pod* asks for in this node's units; UsageError if that is nothing."""
        chosen = pod.packing or packing or facts.Packing.BINPACK
        return asks.pod_of(pod.shape, max(self.unit, 1), chosen)

    def _known(self, but: Collection[str]) -> Iterator[facts.Holding]:
        """Give what is held on devices that are known; what the agent says goes before all."""
        for uid in self.placed:
            if uid not in but:
                yield from self._placed(uid)
        for uid, promise in self.tenants.items():
            if promise.held is not None and uid not in self.placed and uid not in but:
                yield from promise.held

    def _placed(self, uid: str) -> tuple[facts.Holding, ...]:
        promise = self.tenants.get(uid)
        kinds, holder = {}, f"pod {uid}"
        if promise is not None:
            parts = zip(promise.pod.names, promise.pod.shape.parts, strict=False)
            kinds, holder = {name: part.kind for name, part in parts}, promise.pod.key
        return choices.peak(kinds, self.placed[uid], holder)

    def _lost(self) -> Iterable[tuple[str, facts.Pod]]:
        """Give the pods that are here without that anybody said on what, the oldest first.

        They get what their node's agent would give them now.
        """
        lost = [
            promise
            for uid, promise in self.tenants.items()
            if promise.held is None and uid not in self.placed
        ]
        for promise in sorted(lost, key=lambda it: (it.pod.created, it.pod.uid)):
            if self.unit and not promise.pod.trouble:
                try:
                    yield promise.pod.uid, self.wanted(promise.pod)
                except errors.UsageError:
                    continue
