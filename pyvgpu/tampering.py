"""Notice a ledger that was changed by something other than the shim, and say what it lacks; pure.

A usage file is written by the processes that it counts. A program that overwrites its charges
lifts its own quota. The node side has two witnesses that no container writes: what NVML says that
each process holds, and what each slot said before. A charge that falls while the process holds
what it held was not refunded by a shim, which refunds what the driver has freed.

What is lacking is counted by the words for measured memory in the quota (:mod:`.reconcile`), which
a container cannot write.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING

from pyvgpu import kin, quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyvgpu.reconcile import Excess, Held
    from pyvgpu.region import SlotUsage

# What charges and NVML may differ by: of blocks that are not given back yet, and of rounding.
TOLERANCE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """The ledger of a region beside what NVML says, at one moment."""

    before: Sequence[SlotUsage]  # the live slots, read before NVML was asked
    held: Held
    after: Sequence[SlotUsage]  # and after it
    slots: Mapping[int, int]  # of the pids that have one


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A charge that no shim would have left so."""

    device: int  # index in the quota
    slot: int
    pid: int  # as NVML says it; 0: it has ended, and children keep what it held
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """What a slot said, and NVML, when both agreed."""

    process: int  # its pid as NVML says it; 0: not known
    started_ns: int  # as the slot says
    charged: int
    held: int


class Owners:
    """Which process has which slot, remembered whatever the slots say later."""

    def __init__(
        self,
        find: Callable[[int, Sequence[SlotUsage]], int | None],
        began: Callable[[int], bytes | None] = kin.began,
    ) -> None:
        self._find, self._began = find, began
        self._known: dict[int, tuple[bytes | None, int]] = {}  # pid -> when it began, its slot
        self._left: set[int] = set()  # slots of which the process that had them last has ended

    @property
    def pids(self) -> Collection[int]:
        """The processes that have a slot, as far as they were asked for."""
        return self._known.keys()

    def slot_of(self, pid: int, slots: Sequence[SlotUsage]) -> int | None:
        """Return the slot of process *pid* among the live *slots*; None if it is not known."""
        began, known = self._began(pid), self._known.get(pid)
        if known is not None and known[0] == began and any(it.slot == known[1] for it in slots):
            return known[1]
        slot = self._find(pid, slots)
        taken = {it for other, (_, it) in self._known.items() if other != pid}
        if slot is None or slot in taken:
            return None
        self._known[pid] = began, slot
        self._left.discard(slot)
        return slot

    def is_alive(self, pid: int) -> bool:
        """Return whether a process that had a slot still lives."""
        known = self._known.get(pid)
        return known is not None and self._began(pid) == known[0]

    def has_ended(self, slot: int) -> bool | None:
        """Return whether the process that had *slot* last has ended; None if it is not known."""
        pids = [pid for pid, (_, taken) in self._known.items() if taken == slot]
        if pids:
            return not any(map(self.is_alive, pids))
        return True if slot in self._left else None

    def forget_dead(self) -> None:
        """Forget the processes that have ended: their slots may be others' now."""
        alive = {pid: it for pid, it in self._known.items() if self.is_alive(pid)}
        self._left |= {slot for pid, (_, slot) in self._known.items() if pid not in alive}
        self._known = alive


class Memory:
    """What the slots of one region said before."""

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        self._is_alive = is_alive  # whether a process with a pid of NVML's lives
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._suspected: dict[tuple[int, int], Change] = {}

    def compare(self, look: Look) -> tuple[Excess, tuple[Change, ...]]:
        """Return what the ledger lacks of slots that NVML cannot measure, and what was changed.

        A change counts when two looks in a row have seen it.
        """
        pid_of = {slot: pid for pid, slot in look.slots.items()}
        started = {it.slot: it.started_ns for it in look.before}
        lacking: Excess = {}
        found: dict[tuple[int, int], Change] = {}
        seen: dict[tuple[int, int], _Seen] = {}
        for slot, charges in _charges(look).items():
            for device, charged in enumerate(charges):
                key, pid = (device, slot), pid_of.get(slot, 0)
                held = look.held[device].get(pid, 0)
                now = _Seen(pid, started.get(slot, 0), charged, held)
                before = self._seen.get(key)
                seen[key], change = self._judge(key, before, now)
                if change is not None:
                    found[key] = change
                    if not now.held and before is not None:
                        lacking[key] = before.charged - charged
        confirmed = tuple(it for key, it in found.items() if key in self._suspected)
        self._seen, self._suspected = seen, found
        return lacking, confirmed

    def _judge(
        self, key: tuple[int, int], before: _Seen | None, now: _Seen
    ) -> tuple[_Seen, Change | None]:
        """Return what is to be remembered, and the change if there is one."""
        if not now.held:
            return self._judge_unmeasured(key, before, now)
        device, slot = key
        kept = now.held - now.charged
        if before is not None and before.process == now.process:
            fallen = before.charged - now.charged
            freed = before.held - now.held
            if fallen > TOLERANCE_BYTES and kept > TOLERANCE_BYTES and freed < fallen // 2:
                text = _fell(slot, before, now, f"process {now.process} holds")
                return before, Change(device, slot, now.process, text)
        if not now.charged and kept > TOLERANCE_BYTES:
            # A context is charged before the driver is asked for it.
            text = (
                f"slot {slot} is charged nothing, and NVML says that process {now.process} holds "
                f"{quantity.format_size(now.held)}"
            )
            return now, Change(device, slot, now.process, text)
        return now, None

    def _judge_unmeasured(
        self, key: tuple[int, int], before: _Seen | None, now: _Seen
    ) -> tuple[_Seen, Change | None]:
        """Judge a slot whose process NVML does not name: it has left the device, or has ended.

        Nothing but a reaper writes the words of a process that ended, and not while children keep
        its slot. What it freed last is learnt at the first look without it.
        """
        if before is None or not before.process:
            return now, None
        if now.started_ns not in (0, before.started_ns):  # another process; a shim writes no 0
            return now, None
        if self._is_alive(before.process):
            return now, None
        if before.held:
            return dataclasses.replace(now, process=before.process), None
        if before.charged - now.charged <= TOLERANCE_BYTES:
            return before, None
        return before, Change(*key, 0, _fell(key[1], before, now, "its children keep"))


class Witness:
    """Both witnesses of one region together, look by look."""

    def __init__(self, owners: Owners, belongs: Callable[[int], bool], last_slot: int) -> None:
        self._memory = Memory(owners.is_alive)
        self._belongs = belongs  # whether a process with a pid of NVML's is of the region
        self._last_slot = last_slot
        self._impossible: Collection[str] = ()  # of the look before
        self.changes: tuple[Change, ...] = ()  # that the last look has confirmed

    def find_lacking(self, look: Look) -> Excess:
        """Return what the ledger lacks of processes without a slot, and without NVML's word."""
        lacking, self.changes = self._memory.compare(look)
        return lacking | find_strangers(look, self._belongs, self._last_slot)

    def confirm(self, impossible: Collection[str]) -> tuple[str, ...]:
        """Return what of the *impossible* values the look before has found, too."""
        confirmed = tuple(text for text in impossible if text in self._impossible)
        self._impossible = impossible
        return confirmed


def find_strangers(look: Look, belongs: Callable[[int], bool], last_slot: int) -> Excess:
    """Return what processes hold that *belong* to the region and have none of its slots.

    It is counted in the *last slot* of the region. Slots whose process is not known are perhaps
    theirs, so their charges are taken off.
    """
    lacking: Excess = {}
    owned = set(look.slots.values())
    charged = {slot: it for slot, it in _charges(look).items() if slot not in owned}
    for device, by_pid in enumerate(look.held):
        size = sum(held for pid, held in by_pid.items() if pid not in look.slots and belongs(pid))
        size -= sum(it[device] for it in charged.values())
        if size > 0:
            lacking[device, last_slot] = size
    return lacking


def _charges(look: Look) -> dict[int, tuple[int, ...]]:
    """Return the larger of the charges before and after, by slot.

    What a process has open of another is charged there, and NVML may say it of both.
    """
    found: dict[int, tuple[int, ...]] = {}
    for entry in (*look.before, *look.after):
        sizes = tuple(map(operator.add, entry.charged, entry.opened))
        found[entry.slot] = tuple(map(max, found.get(entry.slot, sizes), sizes))
    return found


def _fell(slot: int, before: _Seen, now: _Seen, holder: str) -> str:
    return (
        f"the charge of slot {slot} fell from {quantity.format_size(before.charged)} to "
        f"{quantity.format_size(now.charged)} while {holder} "
        f"{quantity.format_size(now.held or before.charged)}"
    )
