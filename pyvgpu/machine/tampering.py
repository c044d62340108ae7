"""Detect ledgers that something other than the shim has changed, and compute the missing bytes.

A usage file is written by the processes that it counts. A program that overwrites its charges
raises its own quota. The node side has two witnesses that no container can write: the memory that
NVML reports for each process, and the earlier values of each slot. A charge that falls while the
process holds as much as before was not refunded by a shim, which refunds only what the driver has
freed.

Missing bytes are counted in the quota's words for measured memory (:mod:`.ledger_reconcile`),
which a container cannot write. This module is pure.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyvgpu import quantity
from pyvgpu.machine import process_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyvgpu.region import SlotUsage

Excess = dict[tuple[int, int], int]  # by (device, slot), bytes; never 0
Held = tuple[Mapping[int, int], ...]  # by device: NVML's pid -> bytes

# Accepted difference of charges and NVML: blocks that are not yet returned, and rounding.
TOLERANCE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerSample:
    """One sample: the ledger of a region, and NVML's memory values."""

    before: Sequence[SlotUsage]  # the live slots, read before NVML was queried
    held: Held
    after: Sequence[SlotUsage]  # and afterwards
    slots: Mapping[int, int]  # by pid


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerChange:
    """A charge with a value that no shim would have left."""

    device: int  # index in the quota
    slot: int
    pid: int  # NVML's; 0: the process has ended, and its children keep its memory
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class _AgreedValues:
    """The values of a slot and of NVML, when both agreed."""

    process: int  # NVML's pid; 0: unknown
    started_ns: int  # from the slot
    charged: int
    held: int


def merge_slots(entries: Sequence[SlotUsage], slots: Mapping[int, int]) -> Sequence[SlotUsage]:
    """Return *entries* with the slots of one process as one; *slots* are those known, by pid.

    A process has several slots if it called exec while its forked children keep the earlier one,
    or if it has loaded the shim in several namespaces (dlmopen). What NVML reports for it is the
    sum. A slot that is known to be another process's stays apart, whatever it contains.
    """
    owned = set(slots.values())
    if all(entry.slot in owned for entry in entries):
        return entries
    owners = {
        (entry.pid, entry.pid_namespace): entry.slot
        for entry in entries
        if entry.slot in owned and entry.pid_namespace
    }
    merged: dict[int, SlotUsage] = {}
    for entry in sorted(entries, key=lambda entry: entry.slot not in owned):
        slot = entry.slot
        if slot not in owned:
            slot = owners.get((entry.pid, entry.pid_namespace), slot)
        merged[slot] = _sum(merged[slot], entry) if slot in merged else entry
    return tuple(merged.values())


def _sum(one: SlotUsage, other: SlotUsage) -> SlotUsage:
    return dataclasses.replace(
        one,
        charged=tuple(map(operator.add, one.charged, other.charged)),
        opened=tuple(map(operator.add, one.opened, other.opened)),
    )


class Owners:
    """The slots of processes, remembered even if the slots change later."""

    def __init__(
        self,
        find: Callable[[int, Sequence[SlotUsage]], int | None],
        began: Callable[[int], bytes | None] = process_identity.began,
    ) -> None:
        self._find, self._began = find, began
        self._known: dict[int, tuple[bytes | None, int]] = {}  # pid -> start time, slot
        self._left: set[int] = set()  # slots whose last process has ended

    @property
    def pids(self) -> Collection[int]:
        """The processes with a slot, as far as they were looked up."""
        return self._known.keys()

    def slot_of(self, pid: int, slots: Sequence[SlotUsage]) -> int | None:
        """Return the slot of process *pid* among the live *slots*; None if unknown."""
        began, known = self._began(pid), self._known.get(pid)
        if (
            known is not None
            and known[0] == began
            and any(slot_usage.slot == known[1] for slot_usage in slots)
        ):
            return known[1]
        slot = self._find(pid, slots)
        taken = {known_slot for other, (_, known_slot) in self._known.items() if other != pid}
        if slot is None or slot in taken:
            return None
        self._known[pid] = began, slot
        self._left.discard(slot)
        return slot

    def is_alive(self, pid: int) -> bool:
        """Return whether a process that had a slot is still alive."""
        known = self._known.get(pid)
        return known is not None and self._began(pid) == known[0]

    def has_ended(self, slot: int) -> bool | None:
        """Return whether the last process of *slot* has ended; None if unknown."""
        pids = [pid for pid, (_, taken) in self._known.items() if taken == slot]
        if pids:
            return not any(map(self.is_alive, pids))
        return True if slot in self._left else None

    def forget_dead(self) -> None:
        """Forget the processes that have ended: their slots may be reused."""
        alive = {pid: known for pid, known in self._known.items() if self.is_alive(pid)}
        self._left |= {slot for pid, (_, slot) in self._known.items() if pid not in alive}
        self._known = alive


class EarlierSlots:
    """The earlier values of the slots of one region."""

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        self._is_alive = is_alive  # whether the process with NVML's pid is alive
        self._seen: dict[tuple[int, int], _AgreedValues] = {}
        self._suspected: dict[tuple[int, int], LedgerChange] = {}

    def compare(self, sample: LedgerSample) -> tuple[Excess, tuple[LedgerChange, ...]]:
        """Return the missing bytes of slots that NVML cannot measure, and the confirmed changes.

        A change counts if two consecutive samples have seen it.
        """
        pid_of = {slot: pid for pid, slot in sample.slots.items()}
        started = {slot_usage.slot: slot_usage.started_ns for slot_usage in sample.before}
        lacking: Excess = {}
        found: dict[tuple[int, int], LedgerChange] = {}
        seen: dict[tuple[int, int], _AgreedValues] = {}
        for slot, charges in _charges(sample).items():
            for device, charged in enumerate(charges):
                key, pid = (device, slot), pid_of.get(slot, 0)
                held = sample.held[device].get(pid, 0)
                now = _AgreedValues(pid, started.get(slot, 0), charged, held)
                before = self._seen.get(key)
                seen[key], change = self._evaluate(key, before, now)
                if change is not None:
                    found[key] = change
                    if not now.held and before is not None:
                        lacking[key] = before.charged - charged
        confirmed = tuple(finding for key, finding in found.items() if key in self._suspected)
        self._seen, self._suspected = seen, found
        return lacking, confirmed

    def _evaluate(
        self, key: tuple[int, int], before: _AgreedValues | None, now: _AgreedValues
    ) -> tuple[_AgreedValues, LedgerChange | None]:
        """Return the values to remember, and the change if there is one."""
        if not now.held:
            return self._evaluate_unmeasured(key, before, now)
        device, slot = key
        kept = now.held - now.charged
        if before is not None and before.process == now.process:
            fallen = before.charged - now.charged
            freed = before.held - now.held
            if fallen > TOLERANCE_BYTES and kept > TOLERANCE_BYTES and freed < fallen // 2:
                text = _fell(slot, before, now, f"process {now.process} holds")
                return before, LedgerChange(device, slot, now.process, text)
        if not now.charged and kept > TOLERANCE_BYTES:
            # A context is charged before the driver creates it.
            text = (
                f"slot {slot} is charged nothing, and NVML says that process {now.process} holds "
                f"{quantity.format_size(now.held)}"
            )
            return now, LedgerChange(device, slot, now.process, text)
        return now, None

    def _evaluate_unmeasured(
        self, key: tuple[int, int], before: _AgreedValues | None, now: _AgreedValues
    ) -> tuple[_AgreedValues, LedgerChange | None]:
        """Evaluate a slot whose process NVML does not list: it has left the device, or has ended.

        Only a reaper writes the words of an ended process, and not while children keep its slot.
        Its last frees are seen in the first sample without it.
        """
        if before is None or not before.process:
            return now, None
        if now.started_ns not in (0, before.started_ns):  # another process; a shim never writes 0
            return now, None
        if self._is_alive(before.process):
            return now, None
        if before.held:
            return dataclasses.replace(now, process=before.process), None
        if before.charged - now.charged <= TOLERANCE_BYTES:
            return before, None
        return before, LedgerChange(*key, 0, _fell(key[1], before, now, "its children keep"))


class Witness:
    """Both witnesses of one region, fed sample by sample."""

    def __init__(self, owners: Owners, belongs: Callable[[int], bool], last_slot: int) -> None:
        self._memory = EarlierSlots(owners.is_alive)
        self._belongs = belongs  # whether the process with NVML's pid is of the region
        self._last_slot = last_slot
        self._impossible: Collection[str] = ()  # of the previous sample
        self.changes: tuple[LedgerChange, ...] = ()  # confirmed by the last sample

    def find_lacking(self, sample: LedgerSample) -> Excess:
        """Return the missing bytes of processes without a slot, or not listed by NVML."""
        lacking, self.changes = self._memory.compare(sample)
        return lacking | find_strangers(sample, self._belongs, self._last_slot)

    def confirm(self, impossible: Collection[str]) -> tuple[str, ...]:
        """Return the *impossible* values that the previous sample also had."""
        confirmed = tuple(text for text in impossible if text in self._impossible)
        self._impossible = impossible
        return confirmed


def find_strangers(sample: LedgerSample, belongs: Callable[[int], bool], last_slot: int) -> Excess:
    """Return the bytes of processes that *belong* to the region but have none of its slots.

    They are counted in the *last slot* of the region. Slots with an unknown process may be
    theirs, so the charges of these are subtracted.
    """
    lacking: Excess = {}
    owned = set(sample.slots.values())
    charged = {slot: charge for slot, charge in _charges(sample).items() if slot not in owned}
    for device, by_pid in enumerate(sample.held):
        size = sum(
            held for pid, held in by_pid.items() if pid not in sample.slots and belongs(pid)
        )
        size -= sum(by_device[device] for by_device in charged.values())
        if size > 0:
            lacking[device, last_slot] = size
    return lacking


def _charges(sample: LedgerSample) -> dict[int, tuple[int, ...]]:
    """Return the larger of the charges before and after, by slot.

    Memory that a process has open of another is charged there, and NVML may report it for both.
    """
    found: dict[int, tuple[int, ...]] = {}
    for entry in (*sample.before, *sample.after):
        sizes = tuple(map(operator.add, entry.charged, entry.opened))
        found[entry.slot] = tuple(map(max, found.get(entry.slot, sizes), sizes))
    return found


def _fell(slot: int, before: _AgreedValues, now: _AgreedValues, holder: str) -> str:
    return (
        f"the charge of slot {slot} fell from {quantity.format_size(before.charged)} to "
        f"{quantity.format_size(now.charged)} while {holder} "
        f"{quantity.format_size(now.held or before.charged)}"
    )
