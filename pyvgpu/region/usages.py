"""A region's `usage` file, which its shims write and we read: live processes and charges."""

from __future__ import annotations

import array
import dataclasses
import operator
import os
import struct
from typing import TYPE_CHECKING

from pyvgpu import errors, locks, names
from pyvgpu._region import ffi
from pyvgpu.region import layout, shared_memory, words

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE_BYTES: int = ffi.sizeof("struct usage_file")
_TRIES = 100  # attempts to find all charges of a ledger decided
_READS = 5  # of the whole ledger
_LINKS: int = ffi.integer_const("REGION_LINKS")
_LINKS_SINCE = 2  # the layout
_BLOCK_BYTES: int = ffi.integer_const("BLOCK_BYTES")
_BLOCK_STATE: int = ffi.integer_const("BLOCK_STATE")
_BLOCK_USED: int = ffi.integer_const("BLOCK_USED")
_STABLE_TRIES = 10  # to read words and states that belong together


def _place(field: str) -> int:
    return int(ffi.offsetof("struct usage_file", field))


_REFUSED, _ORPHANED, _COMPUTE, _LINK_END = map(
    _place, ("refused", "orphaned", "compute", "link_end")
)
_WORKED = _place("worked_ns")
_BLOCKS = _place("blocks")
_HIGH_WATER = _place("high_water")
_SLOTS, _SLOT_BYTES = _place("slots"), int(ffi.sizeof("struct usage_slot"))
_LINKS_PLACE, _LINK_BYTES = _place("links"), int(ffi.sizeof("struct usage_link"))
_HEAD_BYTES = _place("fd_marker_path")  # the numbers before that field
_CHARGED = tuple(_place("charged") + 8 * layout.SLOTS * device for device in range(layout.DEVICES))
_COMPUTE_BYTES: int = ffi.sizeof("struct usage_compute")
_COMPUTE_FIELDS = tuple(
    ffi.offsetof("struct usage_compute", field) for field in ("busy_ns", "waited_ns", "waits")
)


@dataclasses.dataclass(frozen=True, slots=True)
class SlotUsage:
    """One process, from its slot."""

    slot: int
    pid: int  # in the process's own pid namespace; not trustworthy
    pid_namespace: int  # its inode; 0 if the process could not determine it
    name: str
    started_ns: int  # since the epoch
    refused: int
    charged: tuple[int, ...]  # bytes, by device
    opened: tuple[int, ...]  # bytes, by device, charged to another process of the region
    waiting: int = 0  # threads in calls that wait for a device
    unmovable: int = 0  # pieces of memory that no suspension can move


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """The memory that the live processes of a region hold."""

    slots: tuple[SlotUsage, ...]  # the live ones
    charged: tuple[int, ...]  # bytes by device, over live slots, including orphaned
    orphaned: tuple[int, ...]  # exports of dead processes that live ones may still have open
    refused: tuple[int, ...]  # charges refused, by device
    undecided: bool  # a charge is undecided: the sums may include bytes that are then refused


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The usage of a region on one device, of all its processes; sums are since its creation."""

    charged: int  # bytes; may include undecided charges that are then refused
    refused: int  # charges, sum
    busy_ns: int  # sum
    waited_ns: int  # sum
    waits: int  # sum


@dataclasses.dataclass(frozen=True, slots=True)
class Activity:
    """When the processes of a region last used a device, as far as their shims noted it."""

    worked: float  # seconds, CLOCK_MONOTONIC; 0: never
    wanted: float  # the last call that a suspension held back, likewise
    waits: bool  # a thread waits for the device now


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """The GPU time of a whole region on one device, counted by its shims."""

    busy_ns: int  # time used since the region was created
    waited_ns: int  # total time for which launches were throttled
    waits: int  # throttled launches


def create_usage(folder: int, name: str = names.USAGE_FILE, mode: int = 0o644) -> bytes:
    """Create a usage file in the open *folder*; return the id of its region."""
    region_id = os.urandom(16)
    usage = os.open(name, layout.MAKE, 0o600, dir_fd=folder)
    try:
        os.posix_fallocate(usage, 0, USAGE_BYTES)
        layout.USAGE.write_header(usage, region_id)
        os.fchmod(usage, mode)
    finally:
        os.close(usage)
    return region_id


def read_usage_id(file: int) -> bytes:
    """Return the region id in the open usage *file*; DataError if the file is not valid."""
    return layout.USAGE.read_id(file)


def read_usage(file: int, devices: int = layout.DEVICES) -> Usage:
    """Return the usage of the live processes on the first *devices*, from a usage *file*."""
    alive = slots_alive(file)
    rows = [
        memoryview(_read_words(file, index, layout.SLOTS)).cast("Q") for index in range(devices)
    ]
    orphaned = layout.USAGE.read_integers(file, "orphaned")[:devices]
    shared = _read_links(file)
    if shared:  # otherwise the charges of dead processes do not matter
        words = [[word & layout.BYTES for word in row] for row in rows]
        orphaned = tuple(
            map(operator.add, orphaned, shared_memory.orphaned(shared, set(alive), words))
        )

    def charged(slot: int, index: int) -> int:
        return rows[index][slot] & layout.BYTES if slot < layout.SLOTS else 0

    opened, none = shared_memory.opened(shared, devices, charged), (0,) * devices
    return Usage(
        slots=tuple(
            _read_slot(
                file, slot, tuple(row[slot] & layout.BYTES for row in rows), opened.get(slot, none)
            )
            for slot in alive
        ),
        charged=tuple(
            sum(row[slot] & layout.BYTES for slot in alive) + held
            for row, held in zip(rows, orphaned, strict=True)
        ),
        orphaned=orphaned,
        refused=layout.USAGE.read_integers(file, "refused")[:devices],
        undecided=any(row[slot] > layout.UNDECIDED for row in rows for slot in alive),
    )


def read_figures(file: int, devices: int) -> tuple[int, tuple[DeviceUsage, ...]]:
    """Return the number of live processes, and the totals on the first *devices*.

    Like :func:`read_usage` and :func:`read_compute`, but without details of processes.
    """
    head = layout.USAGE.read(file, _HEAD_BYTES, 0)
    number = layout.USAGE.check(file, head)
    linked = number >= _LINKS_SINCE
    raw = layout.USAGE.read(file, _LINK_END - _COMPUTE + 4 * linked, _COMPUTE)
    compute = words.columns(raw, devices, _COMPUTE_BYTES, _COMPUTE_FIELDS)
    alive = slots_alive(file)
    end = alive[-1] + 1 if alive else 0
    if linked and any(raw[-4:]):
        charged = read_usage(file, devices).charged
    else:
        charged = tuple(
            words.held(_read_words(file, index, end, number), alive, layout.BYTES) + held
            for index, held in enumerate(struct.unpack_from(f"<{devices}Q", head, _ORPHANED))
        )
    refused = struct.unpack_from(f"<{devices}Q", head, _REFUSED)
    return len(alive), tuple(
        DeviceUsage(held, count, *counted)
        for held, count, counted in zip(charged, refused, compute, strict=True)
    )


def read_settled_usage(file: int, devices: int = layout.DEVICES) -> Usage:
    """Retry :func:`read_usage` until there are no undecided charges, up to a limit.

    A retry waits for the charges alone: in a damaged file they may stay undecided, and reading all
    of its links takes long, while callers hold the lock of the machine's reservations.
    """
    usage = read_usage(file, devices)
    tries = iter(range(_TRIES))
    for _ in range(_READS - 1):
        if not usage.undecided or all(_is_undecided(file, devices) for _ in tries):
            break
        usage = read_usage(file, devices)
    return usage


def _is_undecided(file: int, devices: int) -> bool:
    """Return whether any live process has a charge that is still undecided."""
    alive = slots_alive(file)
    end = 8 * (alive[-1] + 1) if alive else 0
    rows = (memoryview(layout.USAGE.read(file, end, at)).cast("Q") for at in _CHARGED[:devices])
    return any(row[slot] > layout.UNDECIDED for row in rows for slot in alive)


def read_compute(file: int, devices: int) -> tuple[Compute, ...]:
    """Return the GPU time in the open usage *file*, of its first *devices*."""
    layout.USAGE.layout_of(file)
    raw = layout.USAGE.read(file, _COMPUTE_BYTES * devices, _COMPUTE)
    return tuple(
        Compute(*column) for column in words.columns(raw, devices, _COMPUTE_BYTES, _COMPUTE_FIELDS)
    )


def read_activity(file: int) -> Activity:
    """Return when the processes of a region last used a device, from a usage *file*.

    A call is noted once for each generation of the quota (quotas.renew).
    """
    if layout.USAGE.layout_of(file) < _LINKS_SINCE:
        return Activity(0.0, 0.0, False)
    raw = layout.USAGE.read(file, 16, _WORKED)
    worked, wanted = (int.from_bytes(raw[at : at + 8], "little") / 1e9 for at in (0, 8))
    return Activity(worked, wanted, any(slot.waiting for slot in read_slots(file, 1)))


def read_slots(file: int, devices: int) -> tuple[SlotUsage, ...]:
    """Return only the live processes, with their charges on the first *devices*."""

    def charged(slot: int, index: int) -> int:
        if slot >= layout.SLOTS:  # from a link that no shim wrote
            return 0
        return words.at(_read_words(file, index, 1, first=slot), 0) & layout.BYTES

    opened, none = shared_memory.opened(_read_links(file), devices, charged), (0,) * devices
    return tuple(
        _read_slot(
            file,
            slot,
            tuple(charged(slot, index) for index in range(devices)),
            opened.get(slot, none),
        )
        for slot in slots_alive(file)
    )


def read_exporters(file: int) -> frozenset[int]:
    """Return the slots of the live processes that have exported memory."""
    return shared_memory.exporters(_read_links(file)) & frozenset(slots_alive(file))


def _read_words(
    file: int, device: int, count: int, number: int | None = None, first: int = 0
) -> bytes:
    """Return *count* words of a device's charges, without blocks that are only reserved.

    *number* is the file's layout, if it is known; *first* is the first word's slot. Like
    region_held() in csrc/core/region.c: a word belongs to a state that has not changed meanwhile.
    """
    place = _CHARGED[device] + 8 * first
    raw = layout.USAGE.read(file, 8 * count, place)
    if not any(raw[6::8]):  # the byte of the flag: no flag in any word
        return raw
    if (number or layout.USAGE.layout_of(file)) < layout.BLOCKS_SINCE:
        return raw
    states = _read_states(file, device, count, first)
    flagged: list[int] = []
    for _ in range(_STABLE_TRIES):
        before = states
        raw = layout.USAGE.read(file, 8 * count, place)
        states = _read_states(file, device, count, first)
        row = memoryview(raw).cast("Q")
        flagged = [slot for slot in range(len(states)) if row[slot] & layout.BLOCK]
        if all(before[slot] == states[slot] for slot in flagged):
            break
    found = array.array("Q", raw)
    for slot in flagged:
        if (
            states[slot] & _BLOCK_STATE != _BLOCK_USED
            and found[slot] & layout.BYTES >= _BLOCK_BYTES
        ):
            found[slot] -= _BLOCK_BYTES
    return found.tobytes()


def _read_states(file: int, device: int, count: int, first: int) -> tuple[int, ...]:
    """Return the states of the blocks of up to *count* slots, as far as slots have one."""
    slots = max(0, min(count, layout.BLOCK_SLOTS - first))
    row = 4 * layout.DEVICES
    raw = layout.USAGE.read(file, row * slots, _BLOCKS + row * first)
    return tuple(memoryview(raw).cast("I")[device :: layout.DEVICES])


def read_high_water(file: int) -> int:
    """Return the first slot that the ledger's sums ignore, in the open usage *file*."""
    raw = layout.USAGE.read(file, 4, _HIGH_WATER)
    return int.from_bytes(raw, "little")


def read_counted_slots(file: int, devices: int) -> tuple[SlotUsage, ...]:
    """Like :func:`read_slots`, but with charges only below the high-water mark, like the sums.

    In a damaged file nothing counts: only the locks of its slots are used.
    """
    nothing = (0,) * devices
    try:
        slots, end = read_slots(file, devices), read_high_water(file)
    except errors.DataError:
        return tuple(
            SlotUsage(slot, 0, 0, "", 0, 0, nothing, nothing) for slot in slots_alive(file)
        )
    return tuple(
        slot_usage if slot_usage.slot < end else dataclasses.replace(slot_usage, charged=nothing)
        for slot_usage in slots
    )


def read_raw_slots(file: int, devices: int) -> tuple[object, ...]:
    """Return all that :func:`read_counted_slots` parses, to see cheaply whether it has changed."""
    alive = slots_alive(file)
    end = alive[-1] + 1 if alive else 0
    read, links = layout.USAGE.read, b""
    try:
        number = layout.USAGE.layout_of(file)
        if number >= _LINKS_SINCE and (made := int.from_bytes(read(file, 4, _LINK_END), "little")):
            links = read(file, _LINK_BYTES * min(made, _LINKS), _LINKS_PLACE)
            end = layout.SLOTS  # links may be of slots whose process has ended
        blocks = min(end, layout.BLOCK_SLOTS) if number >= layout.BLOCKS_SINCE else 0
        return (
            alive,
            read_high_water(file),
            read(file, _SLOT_BYTES * end, _SLOTS),
            *(read(file, 8 * end, place) for place in _CHARGED[:devices]),
            read(file, 4 * layout.DEVICES * blocks, _BLOCKS),
            links,
        )
    except errors.DataError:
        return (alive,)


def _read_links(file: int) -> Sequence[shared_memory.SharedEntry]:
    if layout.USAGE.layout_of(file) < _LINKS_SINCE:
        return ()
    end = int.from_bytes(layout.USAGE.read(file, 4, _LINK_END), "little")
    raw = layout.USAGE.read(file, _LINK_BYTES * min(end, _LINKS), _LINKS_PLACE)
    words = memoryview(raw).cast("Q")
    return tuple(map(shared_memory.SharedEntry, words[::2], words[1::2]))


def slots_alive(file: int) -> tuple[int, ...]:
    """Return the slots of live processes in the open usage *file*, in order."""
    held = locks.all_held(file, layout.SLOT_BYTE, layout.SLOTS)
    return tuple(byte - layout.SLOT_BYTE for byte in held)


def _read_slot(
    file: int, slot: int, charged: tuple[int, ...], opened: tuple[int, ...]
) -> SlotUsage:
    record = ffi.new("struct usage_slot *")
    ffi.buffer(record)[:] = layout.USAGE.read(file, _SLOT_BYTES, _SLOTS + _SLOT_BYTES * slot)
    name = bytes(ffi.buffer(record.name)).split(b"\0")[0].decode("utf-8", "replace")
    return SlotUsage(
        slot,
        record.pid,
        record.pid_namespace,
        name,
        record.started_ns,
        record.refused,
        charged,
        opened,
        record.waiting,
        record.unmovable,
    )
