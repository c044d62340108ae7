"""Per-node device inventory and reservations.

Free capacity is summed up again when it is read after a change, never counted up and down: so
none can leak, whatever the order of events.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import capacity, datatypes, free_capacity, pod_placement, search_budget
from pyvgpu.controller.scheduler import choices, pod_request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyvgpu.allocator import annotations as notes

_NONE: frozenset[str] = frozenset()


class Certainty(enum.Enum):
    """How certain it is that a pod runs where its reservation is."""

    EXPECTED = "expected"  # it will probably be bound there
    NOMINATED = "nominated"  # other pods are being evicted there for it
    BINDING = "binding"  # a bind request is on its way to the API server
    BOUND = "bound"  # the API server says that it is bound there


PASSING = frozenset({Certainty.EXPECTED, Certainty.NOMINATED})  # these expire


@dataclasses.dataclass(slots=True)
class Reservation:
    """The reservation of one pod on one node."""

    pod: pod_request.PodRequest
    node: str
    state: Certainty
    held: tuple[datatypes.Holding, ...] | None  # None: bound to unknown devices
    shares: Mapping[str, tuple[datatypes.NodeShare, ...]] | None = (
        None  # by container; None: not known
    )
    until: float = math.inf  # seconds; then it expires, or is in doubt if BINDING


class NodeInfo:
    """One node: its devices and the pods that hold shares of them."""

    __slots__ = (
        "_capacity",
        "_free",
        "_kinds",
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
        self.unit = 0  # bytes of one vmemory; 0: nothing is published
        self.devices: tuple[datatypes.NodeDevice, ...] = ()
        self.minors: Mapping[str, int] = {}  # by UUID, where known
        self.trouble = ""  # why its annotation is invalid
        self.placed: Mapping[str, choices.Shares] = {}  # what its agent reports, by uid
        self.tenants: dict[str, Reservation] = {}  # by uid
        self._free: tuple[free_capacity.FreeCapacity, ...] | None = None
        self._capacity: capacity.Capacity | None = None
        self._kinds = free_capacity.DeviceKinds.of(())
        self._strays: dict[str, tuple[datatypes.Holding, ...]] = {}

    def update(self, published: notes.Published | None, trouble: str) -> None:
        """Set what the node publishes; None if that is nothing, or invalid (*trouble*)."""
        self.unit = published.memory_unit if published else 0
        self.devices = published.devices if published else ()
        self._kinds = free_capacity.DeviceKinds.of(self.devices)
        self.minors = published.minors if published else {}
        self.placed = published.placed if published else {}
        self.trouble = trouble
        self.changed()

    def changed(self) -> None:
        """Invalidate the cached free capacity."""
        self._free = self._capacity = None

    @property
    def free(self) -> tuple[free_capacity.FreeCapacity, ...]:
        """The free capacity of each device."""
        if self._free is None:
            self._strays = {}
            known = tuple(self._known(_NONE))
            budget = search_budget.SearchBudget(0)  # least effort: this runs after every change
            for uid, wanted in self._lost():
                room = free_capacity.of(datatypes.NodeDevices(self.devices, known))
                placed = pod_placement.find(room, wanted, budget)
                if placed:
                    holder = self.tenants[uid].pod.key
                    self._strays[uid] = pod_placement.holdings(wanted.containers, placed, holder)
                    known = (*known, *self._strays[uid])
            self._free = free_capacity.of(datatypes.NodeDevices(self.devices, known))
        return self._free

    @property
    def capacity(self) -> capacity.Capacity:
        """The same as plain numbers."""
        if self._capacity is None:
            held = self._known(_NONE) if self._is_certain else self.held()
            self._capacity = self._kinds.numbers_of(self.unit, held)
        return self._capacity

    @property
    def _is_certain(self) -> bool:
        """Whether all pods here hold known devices."""
        placed = self.placed
        return all(
            reservation.held is not None or uid in placed
            for uid, reservation in self.tenants.items()
        )

    def without(self, uids: Collection[str]) -> tuple[free_capacity.FreeCapacity, ...]:
        """Return the free capacity of each device if these pods held nothing here."""
        if not any(uid in self.tenants or uid in self.placed for uid in uids):
            return self.free
        return free_capacity.of(datatypes.NodeDevices(self.devices, tuple(self.held(uids))))

    def held(self, excluded: Collection[str] = _NONE) -> Iterator[datatypes.Holding]:
        """Yield what is held here, except by the pods *excluded*."""
        _ = self.free  # places the pods whose devices are unknown
        yield from self._known(excluded)
        for uid, held in self._strays.items():
            if uid not in excluded:
                yield from held

    def held_by(self, uid: str) -> tuple[datatypes.Holding, ...]:
        """Return what a pod holds here."""
        reservation = self.tenants.get(uid)
        if uid in self.placed:
            return self._placed(uid)
        if reservation is None:
            return ()
        if reservation.held is not None:
            return reservation.held
        _ = self.free
        return self._strays.get(uid, ())

    def wanted(
        self, pod: pod_request.PodRequest, packing: datatypes.Packing | None = None
    ) -> datatypes.Pod:
        """Return the request of *pod* in this node's units; UsageError if that is invalid."""
        chosen = pod.packing or packing or datatypes.Packing.BINPACK
        return pod_request.pod_of(pod.shape, max(self.unit, 1), chosen)

    def _known(self, excluded: Collection[str]) -> Iterator[datatypes.Holding]:
        """Yield what is held on known devices; the agent's report overrides reservations."""
        for uid in self.placed:
            if uid not in excluded:
                yield from self._placed(uid)
        for uid, reservation in self.tenants.items():
            if reservation.held is not None and uid not in self.placed and uid not in excluded:
                yield from reservation.held

    def _placed(self, uid: str) -> tuple[datatypes.Holding, ...]:
        reservation = self.tenants.get(uid)
        kinds, holder = {}, f"pod {uid}"
        if reservation is not None:
            parts = zip(reservation.pod.names, reservation.pod.shape.parts, strict=False)
            kinds, holder = {name: part.kind for name, part in parts}, reservation.pod.key
        return choices.peak(kinds, self.placed[uid], holder)

    def _lost(self) -> Iterable[tuple[str, datatypes.Pod]]:
        """Yield the pods here whose devices are unknown, the oldest first.

        They are placed as their node's agent would place them now.
        """
        lost = [
            reservation
            for uid, reservation in self.tenants.items()
            if reservation.held is None and uid not in self.placed
        ]
        for reservation in sorted(lost, key=lambda tenant: (tenant.pod.created, tenant.pod.uid)):
            if self.unit and not reservation.pod.trouble:
                try:
                    yield reservation.pod.uid, self.wanted(reservation.pod)
                except errors.UsageError:
                    continue
