"""Reconcile the ledger with NVML: memory that a process holds without being charged for it.

The shim charges the allocations that it sees, and a reserve for each context. Code and variables
of modules, local memory of kernels and the driver's own buffers may exceed that reserve. NVML
reports the memory that a process really holds; the difference is published in the quota, and the
shims count it like a charge.

A measurement and the ledger are never of the same instant. So a process is compared with the
larger of its charges before and after, and only an excess in two consecutive measurements counts:
an allocation that is made and freed in between is never mistaken for an excess.

A killed process leaves its memory to its forked children, and NVML no longer lists it. Then the
last measurement is kept for as long as its slot. A live process that NVML does not list holds
nothing on the device, and nothing is counted for it.

Memory that one process of the region exports and others open is charged to the exporter. NVML may
or may not report it for the others, too: so opened memory of the region is never an excess.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.machine import tampering
from pyvgpu.machine.tampering import Excess, Held, LedgerSample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu import region


@dataclasses.dataclass(frozen=True, slots=True)
class ReconcileSources:
    """The sources of the measurements, and the sink of the result."""

    charges: Callable[[], Sequence[region.SlotUsage]]  # of the live processes of the region
    measure: Callable[[], Held]
    slot_of: Callable[[int, Sequence[region.SlotUsage]], int | None]  # of a pid, if it is ours
    has_ended: Callable[[region.SlotUsage], bool]  # the process; its children may keep the slot
    publish: Callable[[Excess], None]
    # Other bytes that the ledger lacks, such as of slots whose process NVML does not list.
    lacking: Callable[[LedgerSample], Excess] = lambda _: {}


def find_excess(
    before: Sequence[region.SlotUsage],
    held: Held,
    after: Sequence[region.SlotUsage],
    slots: Mapping[int, int],
) -> Excess:
    """Return the bytes held beyond the charges; *slots* maps pids to slots."""
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
    """Return the excess that both measurements have seen."""
    return {key: min(size, again[key]) for key, size in seen.items() if key in again}


def keep(published: Excess, ended: Sequence[region.SlotUsage]) -> Excess:
    """Return the *published* excess of slots whose processes have *ended* with charges left."""
    charged = {
        (device, entry.slot)
        for entry in ended
        for device, size in enumerate(entry.charged)
        if size
    }
    return {key: size for key, size in published.items() if key in charged}


class Reconciler:
    """Measures on each call of :meth:`poll`, and publishes changes."""

    def __init__(self, sources: ReconcileSources, published: Excess | None = None) -> None:
        self._sources = sources
        self._seen: Excess = {}
        self._published: Excess = published or {}  # by an earlier one
        # Whether the last poll had published bytes of slots that NVML does not list: these end
        # with their process, whatever the ledger says.
        self.has_unmeasured = False

    def poll(self) -> None:
        """Measure once, and publish the excess of two consecutive measurements."""
        sources = self._sources
        before = sources.charges()
        held = sources.measure()
        pids = {pid for by_pid in held for pid in by_pid}
        slots = {pid: sources.slot_of(pid, before) for pid in pids}
        known = {pid: slot for pid, slot in slots.items() if slot is not None}
        after = sources.charges()  # includes memory that was charged meanwhile
        before, after = (tampering.merge_slots(entries, known) for entries in (before, after))
        found = find_excess(before, held, after, known)
        lacking = sources.lacking(LedgerSample(before, held, after, known))
        found |= {key: max(size, found.get(key, 0)) for key, size in lacking.items()}
        measured = {
            (device, known[pid])
            for device, by_pid in enumerate(held)
            for pid in by_pid
            if pid in known
        }
        unseen = {key: size for key, size in self._published.items() if key not in measured}
        self.has_unmeasured = bool(unseen)
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
