"""The two files of a region: `quota`, which we write, and `usage`, which the shims write.

The layout is csrc/region.h alone, through cffi. Nothing here maps a file that somebody else
may write: `usage` is read by pread, so that a tenant who cuts it short costs us nothing.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import itertools
import operator
import os
from typing import TYPE_CHECKING, Any

from pyvgpu import device, errors, links, locks, names, quantity, quota
from pyvgpu._region import ffi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.share import Share

SUPERVISED = ffi.integer_const("QUOTA_SUPERVISED")
SLOTS: int = ffi.integer_const("REGION_SLOTS")
DEVICES: int = ffi.integer_const("REGION_DEVICES")
LINKS: int = ffi.integer_const("REGION_LINKS")
USAGE_BYTES: int = ffi.sizeof("struct usage_file")
_LAYOUT = ffi.integer_const("REGION_LAYOUT")
_QUOTA_MAGIC = ffi.integer_const("QUOTA_MAGIC")
_USAGE_MAGIC = ffi.integer_const("USAGE_MAGIC")
_SUPERVISOR_BYTE = ffi.integer_const("QUOTA_LOCK_SUPERVISOR")
_SLOT_BYTE = ffi.integer_const("USAGE_LOCK_SLOT")
_BYTES: int = (1 << ffi.integer_const("LEDGER_PENDING_SHIFT")) - 1  # of a word; above it, marks

# What each layout that we read has of a file: all of it, or what comes before a field.
_QUOTA_SIZES = {
    1: ffi.offsetof("struct quota_file", "extra_total"),
    2: ffi.sizeof("struct quota_file"),
}
_USAGE_SIZES = {
    1: ffi.offsetof("struct usage_file", "link_end"),
    2: ffi.sizeof("struct usage_file"),
}

_OFFSET_BASIS, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a, 64 bits
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a quota file says of one device."""

    uuid: str
    vcore: int
    vcore_limit: int
    vmemory: int  # bytes
    memory_total: int  # bytes of the whole device
    context_reserve: int  # bytes
    policy: quota.Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The copy of the limits that counts now."""

    generation: int
    flags: int
    driver_release: str
    devices: tuple[DeviceLimits, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SlotUsage:
    """One process, as its slot shows it."""

    slot: int
    pid: int  # in the process's own pid namespace; proves nothing
    pid_namespace: int  # its inode; 0 if the process could not tell
    name: str
    started_ns: int  # since the epoch
    refused: int
    charged: tuple[int, ...]  # bytes, by device


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What the live processes of a region hold."""

    slots: tuple[SlotUsage, ...]  # those alive
    charged: tuple[int, ...]  # bytes by device, over live slots, orphaned included
    orphaned: tuple[int, ...]  # what the dead have shared and the living may still have open
    refused: tuple[int, ...]  # charges refused, by device
    undecided: bool  # a charge was being decided: the sums may hold bytes that are then refused


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """The GPU time of a whole region on one device, ns, as its shims count it."""

    busy_ns: int  # that was used since the region was made
    waited_ns: int  # that launches waited for their turn, all together
    waits: int  # launches that waited


def create(folder: int, driver_release: str, shares: Sequence[Share]) -> int:
    """Make both files in the open *folder*; return `quota`, open, its supervisor's lock held.

    All room is taken now, so that a full disk is met here and not by the tenant.
    """
    _check_count(shares)
    region_id = create_usage(folder)
    file = os.open(names.QUOTA_FILE, _MAKE, 0o400, dir_fd=folder)
    try:
        if not locks.take(file, _SUPERVISOR_BYTE):
            raise errors.UnavailableError("the lock of a new quota file is held by somebody else")
        _fill_quota(file, region_id, _render(1, SUPERVISED, driver_release, shares))
        os.fchmod(file, 0o444)
    except BaseException:
        os.close(file)
        raise
    return file


def create_usage(folder: int, name: str = names.USAGE_FILE, mode: int = 0o644) -> bytes:
    """Make a usage file in the open *folder*; return the identity of its region."""
    region_id = os.urandom(16)
    size = ffi.sizeof("struct usage_file")
    usage = os.open(name, _MAKE, 0o600, dir_fd=folder)
    try:
        os.posix_fallocate(usage, 0, size)
        _write_header(usage, _USAGE_MAGIC, size, region_id)
        os.fchmod(usage, mode)
    finally:
        os.close(usage)
    return region_id


def create_quota(
    folder: int, name: str, region_id: bytes, driver_release: str, shares: Sequence[Share]
) -> None:
    """Make the quota of a region that nobody supervises: it holds until it is removed.

    Who maps it must do so through a read-only mount: its owner may write to it.
    """
    _check_count(shares)
    file = os.open(name, _MAKE, 0o600, dir_fd=folder)
    try:
        _fill_quota(file, region_id, _render(1, 0, driver_release, shares))
        os.fchmod(file, 0o644)
    finally:
        os.close(file)


def read_extra_totals(file: int, devices: int) -> tuple[int, ...]:
    """Return the bytes of each of the first *devices* that were measured beyond all charges."""
    if _read_layout(file, "quota", _QUOTA_MAGIC, _QUOTA_SIZES) < 2:
        return (0,) * devices
    return _integers(file, "quota", "extra_total")[:devices]


def read_usage_id(file: int) -> bytes:
    """Return the identity in the open usage *file*; DataError if it is not a whole one."""
    _read_layout(file, "usage", _USAGE_MAGIC, _USAGE_SIZES)
    return _read_id(file, "usage")


def read_quota_id(file: int) -> bytes:
    """Return the identity in the open quota *file*; DataError if it is not a whole one."""
    _read_layout(file, "quota", _QUOTA_MAGIC, _QUOTA_SIZES)
    return _read_id(file, "quota")


def update(file: int, driver_release: str, shares: Sequence[Share]) -> None:
    """Write new limits into the open quota *file*: over the copy that does not count."""
    copies = _read_copies(file)
    now = read_limits(file)
    older = 0 if copies[0].generation != now.generation else 1
    _write_copy(file, older, _render(now.generation + 1, now.flags, driver_release, shares))


def close(file: int) -> None:
    """Let the open quota *file* allow nothing more: no process may join, none gets any memory.

    What is held stays held, and launches go at the slowest pace that there is.
    """
    copies = _read_copies(file)
    valid = [copy for copy in copies if _is_valid(copy)]
    if not valid:
        return
    now = max(valid, key=lambda copy: int(copy.generation))
    older = 0 if copies[0].generation != now.generation else 1
    now.generation += 1
    now.flags |= SUPERVISED  # by nobody
    for entry in now.devices[0 : now.device_count]:
        entry.vmemory, entry.vcore, entry.vcore_limit = 0, 1, 1
        entry.policy = ffi.integer_const("POLICY_HARD")
    now.checksum = _checksum(now)
    _write_copy(file, older, now)


def read_generation(file: int) -> int:
    """Return the generation of the limits in the open quota *file*, for noticing a change."""
    return max(int(copy.generation) for copy in _read_copies(file))


def read_limits(file: int) -> Limits:
    """Return the limits that count in the open quota *file*; DataError if there are none."""
    _read_layout(file, "quota", _QUOTA_MAGIC, _QUOTA_SIZES)
    valid = [copy for copy in _read_copies(file) if _is_valid(copy)]
    if not valid:
        raise errors.DataError("quota: neither copy of the limits is valid")
    return _parse_limits(max(valid, key=lambda copy: int(copy.generation)))


def limits_of(generation: int, flags: int, driver_release: str, shares: Sequence[Share]) -> Limits:
    """Return what a quota with these *shares* says, without one."""
    return _parse_limits(_render(generation, flags, driver_release, shares))


def publish_extra(file: int, extra: Mapping[tuple[int, int], int]) -> None:
    """Write into the open quota *file* the bytes by (device, slot) that no charge covers.

    Every sum of the ledger counts them from then on; what *extra* does not name is 0 again.
    """
    if _read_layout(file, "quota", _QUOTA_MAGIC, _QUOTA_SIZES) < 2:
        raise errors.DataError("quota: layout 1 has no room for what was measured")
    rows = [[0] * SLOTS for _ in range(DEVICES)]
    for (index, slot), held in extra.items():
        if not (0 <= index < DEVICES and 0 <= slot < SLOTS and 0 <= held <= _BYTES // SLOTS):
            raise errors.DataError(f"extra={extra}: must be bytes by device and slot")
        rows[index][slot] = held
    # The total is what the shims count; the rows say whose it is.
    totals = array.array("Q", map(sum, rows))
    words = array.array("Q", itertools.chain(*rows))
    os.pwrite(file, totals, ffi.offsetof("struct quota_file", "extra_total"))
    os.pwrite(file, words, ffi.offsetof("struct quota_file", "extra"))


def read_extra(file: int, devices: int) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that were measured beyond all charges: of the first *devices*, by slot."""
    if _read_layout(file, "quota", _QUOTA_MAGIC, _QUOTA_SIZES) < 2:
        return ((0,) * SLOTS,) * devices
    base = ffi.offsetof("struct quota_file", "extra")
    rows = (_pread(file, 8 * SLOTS, base + 8 * SLOTS * index, "quota") for index in range(devices))
    return tuple(tuple(memoryview(row).cast("Q")) for row in rows)


def read_usage(file: int, devices: int = DEVICES) -> Usage:
    """Return what the processes that live have of the first *devices* of a usage *file*."""
    layout = _read_layout(file, "usage", _USAGE_MAGIC, _USAGE_SIZES)
    alive = _slots_alive(file)
    base = ffi.offsetof("struct usage_file", "charged")
    size = 8 * SLOTS
    rows = [
        memoryview(_pread(file, size, base + size * index, "usage")).cast("Q")
        for index in range(devices)
    ]
    orphaned = _integers(file, "usage", "orphaned")[:devices]
    shared = _read_links(file) if layout > 1 else ()
    if shared:  # else nobody has to look at the words of the dead
        words = [[word & _BYTES for word in row] for row in rows]
        orphaned = tuple(map(operator.add, orphaned, links.orphaned(shared, set(alive), words)))
    return Usage(
        slots=tuple(
            _read_slot(file, slot, tuple(row[slot] & _BYTES for row in rows)) for slot in alive
        ),
        charged=tuple(
            sum(row[slot] & _BYTES for slot in alive) + held
            for row, held in zip(rows, orphaned, strict=True)
        ),
        orphaned=orphaned,
        refused=_integers(file, "usage", "refused")[:devices],
        undecided=any(row[slot] > _BYTES for row in rows for slot in alive),
    )


def read_compute(file: int, devices: int) -> tuple[Compute, ...]:
    """Return the GPU time that the open usage *file* counts, of its first *devices*."""
    _read_layout(file, "usage", _USAGE_MAGIC, _USAGE_SIZES)
    size = ffi.sizeof("struct usage_compute")
    base = ffi.offsetof("struct usage_file", "compute")
    record = ffi.new("struct usage_compute *")
    found = []
    for index in range(devices):
        ffi.buffer(record)[:] = _pread(file, size, base + size * index, "usage")
        found.append(Compute(record.busy_ns, record.waited_ns, record.waits))
    return tuple(found)


def read_slots(file: int, devices: int) -> tuple[SlotUsage, ...]:
    """Return the live processes alone, with their charges on the first *devices*."""
    base = ffi.offsetof("struct usage_file", "charged")

    def charged(slot: int, index: int) -> int:
        raw = _pread(file, 8, base + 8 * (SLOTS * index + slot), "usage")
        return int.from_bytes(raw, "little") & _BYTES

    return tuple(
        _read_slot(file, slot, tuple(charged(slot, index) for index in range(devices)))
        for slot in _slots_alive(file)
    )


def is_alive(folder: int) -> bool:
    """Return whether the supervisor or any process of the region in *folder* still lives."""
    for name, byte, length in (
        (names.QUOTA_FILE, _SUPERVISOR_BYTE, 1),
        (names.USAGE_FILE, _SLOT_BYTE, SLOTS),
    ):
        try:
            file = os.open(name, _READ, dir_fd=folder)
        except OSError:
            continue
        try:
            if locks.is_held(file, byte, length):
                return True
        finally:
            os.close(file)
    return False


def is_used(usage: int) -> bool:
    """Return whether any process has a slot of the open file *usage*."""
    return locks.is_held(usage, _SLOT_BYTE, SLOTS)


def wait_until_unused(folder: int) -> None:
    """Sleep until no process of the region in *folder* has a slot."""
    file = os.open(names.USAGE_FILE, _READ, dir_fd=folder)
    try:
        locks.wait_free(file, _SLOT_BYTE, SLOTS)
    finally:
        os.close(file)


def _render(generation: int, flags: int, release: str, shares: Sequence[Share]) -> Any:
    copy = ffi.new("struct quota_limits *")
    encoded = release.encode("ascii")
    if len(encoded) >= len(copy.driver_release):
        raise errors.DataError(
            f"driver release {release!r}: is too long, it reads such as 580.65.06"
        )
    copy.generation = generation
    copy.device_count = len(shares)
    copy.flags = flags
    copy.driver_release = encoded
    for entry, share in zip(copy.devices, shares, strict=False):
        entry.uuid = device.uuid_bytes(share.device.uuid)
        entry.vmemory = share.vmemory
        entry.context_reserve = share.device.context_bytes
        entry.memory_total = share.device.memory_bytes
        entry.vcore = share.vcore
        entry.vcore_limit = share.vcore_limit
        entry.policy = share.policy
    copy.checksum = _checksum(copy)
    return copy


def _write_copy(file: int, index: int, copy: Any) -> None:
    """Write one copy so that a reader never takes a half-written one for valid."""
    base = ffi.offsetof("struct quota_file", "limits") + index * ffi.sizeof("struct quota_limits")
    raw = bytes(ffi.buffer(copy))
    os.pwrite(file, bytes(8), base)  # generation 0: not valid
    os.pwrite(file, raw[8:], base + 8)
    os.pwrite(file, raw[:8], base)


def _read_layout(file: int, name: str, magic: int, sizes: Mapping[int, int]) -> int:
    """Return the layout of the open *file*; DataError unless it is whole and one that we know."""
    header = ffi.new("struct region_header *")
    ffi.buffer(header)[:] = _pread(file, ffi.sizeof("struct region_header"), 0, name)
    if header.magic != magic:
        raise errors.DataError(f"{name}: not a {name} file (wrong magic)")
    if header.layout not in sizes:
        raise errors.DataError(
            f"{name}: layout {header.layout}: this pyvgpu knows {min(sizes)} to {max(sizes)}"
        )
    size = os.fstat(file).st_size
    if not header.size == sizes[header.layout] <= size:
        raise errors.DataError(f"{name}: is too short, it ends at {size} bytes")
    return int(header.layout)


def _read_links(file: int) -> Sequence[links.Link]:
    used = ffi.offsetof("struct usage_file", "link_end")
    end = int.from_bytes(_pread(file, 4, used, "usage"), "little")
    base, size = ffi.offsetof("struct usage_file", "links"), ffi.sizeof("struct usage_link")
    words = memoryview(_pread(file, size * min(end, LINKS), base, "usage")).cast("Q")
    return tuple(map(links.Link, words[::2], words[1::2]))


def _check_count(shares: Sequence[Share]) -> None:
    if not 1 <= len(shares) <= DEVICES:
        raise errors.UsageError(f"{len(shares)} devices: a region has 1 to {DEVICES}")


def _fill_quota(file: int, region_id: bytes, limits: Any) -> None:
    size = ffi.sizeof("struct quota_file")
    os.posix_fallocate(file, 0, size)
    _write_copy(file, 0, limits)
    _write_header(file, _QUOTA_MAGIC, size, region_id)


def _read_id(file: int, name: str) -> bytes:
    at = ffi.offsetof("struct region_header", "region_id")
    return _pread(file, 16, at, name)


def _write_header(file: int, magic: int, size: int, region_id: bytes) -> None:
    header = ffi.new("struct region_header *")
    header.magic = magic
    header.layout = _LAYOUT
    header.size = size
    header.region_id = region_id
    os.pwrite(file, bytes(ffi.buffer(header)), 0)


def _read_copies(file: int) -> tuple[Any, Any]:
    base = ffi.offsetof("struct quota_file", "limits")
    size = ffi.sizeof("struct quota_limits")
    first, second = ffi.new("struct quota_limits *"), ffi.new("struct quota_limits *")
    for index, copy in enumerate((first, second)):
        ffi.buffer(copy)[:] = _pread(file, size, base + size * index, "quota")
    return first, second


def _is_valid(copy: Any) -> bool:
    counted = copy.generation != 0 and 1 <= copy.device_count <= DEVICES
    return bool(counted and copy.checksum == _checksum(copy))


def _checksum(copy: Any) -> int:
    return _hash(bytes(ffi.buffer(copy, ffi.offsetof("struct quota_limits", "checksum"))))


@functools.lru_cache(maxsize=512)  # most limits that are read are those of a moment ago
def _hash(content: bytes) -> int:
    value = _OFFSET_BASIS
    for byte in content:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def _parse_limits(copy: Any) -> Limits:
    release = bytes(ffi.buffer(copy.driver_release)).split(b"\0")[0].decode("ascii", "replace")
    if not release.isprintable():
        raise errors.DataError("quota: the driver release is not printable")
    return Limits(
        generation=copy.generation,
        flags=copy.flags,
        driver_release=release,
        devices=tuple(_parse_device(copy.devices[i]) for i in range(copy.device_count)),
    )


def _parse_device(entry: Any) -> DeviceLimits:
    if entry.policy not in tuple(quota.Policy) or entry.vmemory > quantity.MAXIMUM_BYTES:
        raise errors.DataError("quota: a device's limits make no sense")
    return DeviceLimits(
        uuid=device.uuid_text(bytes(ffi.buffer(entry.uuid))),
        vcore=entry.vcore,
        vcore_limit=entry.vcore_limit,
        vmemory=entry.vmemory,
        memory_total=entry.memory_total,
        context_reserve=entry.context_reserve,
        policy=quota.Policy(entry.policy),
    )


def _slots_alive(file: int) -> tuple[int, ...]:
    alive: list[int] = []
    byte, end = _SLOT_BYTE, _SLOT_BYTE + SLOTS
    while byte < end:
        found = locks.first_held(file, byte, end - byte)
        if found is None:
            break
        alive.append(found - _SLOT_BYTE)
        byte = found + 1
    return tuple(alive)


def _read_slot(file: int, slot: int, charged: tuple[int, ...]) -> SlotUsage:
    size = ffi.sizeof("struct usage_slot")
    record = ffi.new("struct usage_slot *")
    base = ffi.offsetof("struct usage_file", "slots")
    ffi.buffer(record)[:] = _pread(file, size, base + size * slot, "usage")
    name = bytes(ffi.buffer(record.name)).split(b"\0")[0].decode("utf-8", "replace")
    return SlotUsage(
        slot,
        record.pid,
        record.pid_namespace,
        name,
        record.started_ns,
        record.refused,
        charged,
    )


def _integers(file: int, name: str, field: str) -> tuple[int, ...]:
    raw = _pread(file, 8 * DEVICES, ffi.offsetof(f"struct {name}_file", field), name)
    return tuple(memoryview(raw).cast("Q"))


def _pread(file: int, size: int, offset: int, name: str) -> bytes:
    raw = os.pread(file, size, offset)
    if len(raw) != size:
        raise errors.DataError(f"{name}: is too short, it ends at {offset + len(raw)} bytes")
    return raw
