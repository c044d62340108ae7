"""Reconcile the ledger with NVML: bytes that a process holds and was never charged for.

The shim charges what it sees asked for, and a reserve for each context. Code and variables of
modules, local memory of kernels and the driver's own buffers may go beyond that reserve. NVML
knows what a process really holds; the difference is published in the quota, and the shims count
it like a charge.

A measurement and the ledger are never of the same instant. So a process is compared with the
larger of its charges before and after, and only what two measurements in a row have seen counts:
an allocation that comes and goes in between is never taken for an excess.

A process that was killed leaves its memory to children that it forked, and NVML names it no more.
Then what was measured last still holds, as long as its slot. A process that lives and that NVML
does not name has nothing on the device, and nothing is counted for it any more.

Memory that one process of the region exports and others open is charged to the first. Whether NVML
says it of the others, too, differs: so what a process has open of the region's is no excess of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyvgpu import tampering

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu import region

Excess = dict[tuple[int, int], int]  # by (device, slot), bytes; never 0
Held = tuple[Mapping[int, int], ...]  # by device: pid as NVML says it -> bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from, and where the result goes."""

    charges: Callable[[], Sequence[region.SlotUsage]]  # of the live processes of the region
    measure: Callable[[], Held]
    slot_of: Callable[[int, Sequence[region.SlotUsage]], int | None]  # of a pid, if it is ours
    has_ended: Callable[[region.SlotUsage], bool]  # its process; children may keep the slot
    publish: Callable[[Excess], None]
    # What else the ledger lacks, such as of slots that no process of NVML's has.
    lacking: Callable[[tampering.Look], Excess] = lambda _: {}


def find_excess(
    before: Sequence[region.SlotUsage],
    held: Held,
    after: Sequence[region.SlotUsage],
    slots: Mapping[int, int],
) -> Excess:
    """Return what the processes hold beyond what is charged; *slots* says whose a pid is."""
    excess: Excess = {}
    for device, by_pid in enumerate(held):
        measured: dict[int, int] = {}
        for pid, size in by_pid.items():
            if pid in slots:
                measured[slots[pid]] = measured.get(slots[pid], 0) + size
        for slot, size in measured.items():
            entries = [entry for entry in (*before, *after) if entry.slot == slot]
            charged = max((entry.charged[device] for entry in entries), default=0)
            charged += max((entry.opened[device] for entry in entries), default=0)
            if size > charged:
                excess[device, slot] = size - charged
    return excess


def confirm(seen: Excess, again: Excess) -> Excess:
    """Return what both measurements have seen."""
    return {key: min(size, again[key]) for key, size in seen.items() if key in again}


def keep(published: Excess, ended: Sequence[region.SlotUsage]) -> Excess:
    """Return what was *published* of the slots whose processes have *ended* with charges left."""
    charged = {
        (device, entry.slot)
        for entry in ended
        for device, size in enumerate(entry.charged)
        if size
    }
    return {key: size for key, size in published.items() if key in charged}


class Reconciler:
    """Measures when it is told to, and publishes what changed."""

    def __init__(self, sources: Sources, published: Excess | None = None) -> None:
        self._sources = sources
        self._seen: Excess = {}
        self._published: Excess = published or {}  # by an earlier one

    def look(self) -> None:
        """Measure once, and publish what two measurements in a row have seen."""
        sources = self._sources
        before = sources.charges()
        held = sources.measure()
        pids = {pid for by_pid in held for pid in by_pid}
        slots = {pid: sources.slot_of(pid, before) for pid in pids}
        known = {pid: slot for pid, slot in slots.items() if slot is not None}
        after = sources.charges()  # perhaps it was charged meanwhile
        found = find_excess(before, held, after, known)
        lacking = sources.lacking(tampering.Look(before, held, after, known))
        found |= {key: max(size, found.get(key, 0)) for key, size in lacking.items()}
        measured = {
            (device, known[pid])
            for device, by_pid in enumerate(held)
            for pid in by_pid
            if pid in known
        }
        unseen = {key: size for key, size in self._published.items() if key not in measured}
        slots_unseen = {slot for _, slot in unseen}
        kept = keep(
            unseen,
            [entry for entry in before if entry.slot in slots_unseen and sources.has_ended(entry)],
        )
        confirmed = confirm(self._seen, found) | kept
        self._seen = found
        if confirmed != self._published:
            sources.publish(confirmed)
            self._published = confirmed
