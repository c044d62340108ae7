"""A region's `quota`, which we write and its shims read: what each device gives at most."""

from __future__ import annotations

import array
import dataclasses
import functools
import itertools
import os
from typing import TYPE_CHECKING, Any

from pyvgpu import device, errors, locks, names, quantity, quota
from pyvgpu._region import ffi
from pyvgpu.region import layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.share import Share

SUPERVISED: int = ffi.integer_const("QUOTA_SUPERVISED")
_PRIORITIES = {
    quota.Priority.LOW: int(ffi.integer_const("QUOTA_LOW")),
    quota.Priority.NORMAL: 0,
    quota.Priority.HIGH: int(ffi.integer_const("QUOTA_HIGH")),
}

_OFFSET_BASIS, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a, 64 bits


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a quota file says of one device."""

    uuid: str
    vcore: int
    vcore_limit: int
    vmemory: int  # bytes
    memory_total: int  # bytes of the whole device
    context_reserve: int  # bytes
    green_reserve: int  # bytes, in whole KiB
    policy: quota.Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The copy of the limits that counts now."""

    generation: int
    flags: int
    driver_release: str
    devices: tuple[DeviceLimits, ...]

    @property
    def priority(self) -> quota.Priority:
        """Which of those that share a device gives way."""
        for priority, flag in _PRIORITIES.items():
            if self.flags & flag:
                return priority
        return quota.Priority.NORMAL


def create_supervised(
    folder: int, region_id: bytes, driver_release: str, shares: Sequence[Share]
) -> int:
    """Make the quota of a region in the open *folder*; return it, its supervisor's lock held."""
    file = os.open(names.QUOTA_FILE, layout.MAKE, 0o400, dir_fd=folder)
    try:
        if not locks.take(file, layout.SUPERVISOR_BYTE):
            raise errors.UnavailableError(
                "the lock of a new quota file is held by another process"
            )
        _take_room(file)
        _fill_quota(file, region_id, _render(1, SUPERVISED, driver_release, shares))
        os.fchmod(file, 0o444)
    except BaseException:
        os.close(file)
        raise
    return file


def create_quota(
    folder: int, name: str, region_id: bytes, driver_release: str, shares: Sequence[Share]
) -> None:
    """Make the quota of a region that nobody supervises: it holds until it is removed.

    Who maps it must do so through a read-only mount: its owner may write to it.
    """
    file = os.open(name, layout.MAKE, 0o600, dir_fd=folder)
    try:
        _take_room(file)
        begin_quota(file, region_id, driver_release, shares)
    finally:
        os.close(file)


def prepare_quota(folder: int, name: str) -> None:
    """Make a quota file that is none yet, for :func:`begin_quota`: with all the room it needs."""
    file = os.open(name, layout.MAKE, 0o644, dir_fd=folder)
    try:
        _take_room(file)
    finally:
        os.close(file)


def begin_quota(file: int, region_id: bytes, driver_release: str, shares: Sequence[Share]) -> None:
    """Let the open *file*, which nobody has seen, be the quota of a region that none supervises.

    DataError for shares that no quota can have.
    """
    check_count(shares)
    _fill_quota(file, region_id, _render(1, 0, driver_release, shares))
    os.fchmod(file, 0o644)


def read_extra_totals(file: int, devices: int) -> tuple[int, ...]:
    """Return the bytes of each of the first *devices* that were measured beyond all charges."""
    if layout.QUOTA.layout_of(file) < 2:
        return (0,) * devices
    return layout.QUOTA.read_integers(file, "extra_total")[:devices]


def read_quota_id(file: int) -> bytes:
    """Return the identity in the open quota *file*; DataError if it is not a whole one."""
    return layout.QUOTA.read_id(file)


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
    layout.QUOTA.layout_of(file)
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
    if layout.QUOTA.layout_of(file) < 2:
        raise errors.DataError("quota: layout 1 has no room for what was measured")
    rows = [[0] * layout.SLOTS for _ in range(layout.DEVICES)]
    for (index, slot), held in extra.items():
        if not (
            0 <= index < layout.DEVICES
            and 0 <= slot < layout.SLOTS
            and 0 <= held <= layout.BYTES // layout.SLOTS
        ):
            raise errors.DataError(f"extra={extra}: must be bytes by device and slot")
        rows[index][slot] = held
    # The total is what the shims count; the rows say whose it is.
    totals = array.array("Q", map(sum, rows))
    words = array.array("Q", itertools.chain(*rows))
    os.pwrite(file, totals, ffi.offsetof("struct quota_file", "extra_total"))
    os.pwrite(file, words, ffi.offsetof("struct quota_file", "extra"))


def read_extra(file: int, devices: int) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that were measured beyond all charges: of the first *devices*, by slot."""
    if layout.QUOTA.layout_of(file) < 2:
        return ((0,) * layout.SLOTS,) * devices
    base = ffi.offsetof("struct quota_file", "extra")
    rows = (
        layout.QUOTA.read(file, 8 * layout.SLOTS, base + 8 * layout.SLOTS * index)
        for index in range(devices)
    )
    return tuple(tuple(memoryview(row).cast("Q")) for row in rows)


def _render(generation: int, flags: int, release: str, shares: Sequence[Share]) -> Any:
    copy = ffi.new("struct quota_limits *")
    encoded = release.encode("ascii")
    if len(encoded) >= len(copy.driver_release):
        raise errors.DataError(
            f"driver release {release!r}: is too long, it reads such as 580.65.06"
        )
    copy.generation = generation
    copy.device_count = len(shares)
    copy.flags = flags & ~sum(_PRIORITIES.values()) | _PRIORITIES[_priority(shares)]
    copy.driver_release = encoded
    for entry, share in zip(copy.devices, shares, strict=False):
        entry.uuid = device.uuid_bytes(share.device.uuid)
        entry.vmemory = share.vmemory
        entry.context_reserve = share.device.context_bytes
        entry.green_kib = -(-share.device.green_bytes // 1024)
        entry.memory_total = share.device.memory_bytes
        entry.vcore = share.vcore
        entry.vcore_limit = share.vcore_limit
        entry.policy = share.policy
    copy.checksum = _checksum(copy)
    return copy


def _priority(shares: Sequence[Share]) -> quota.Priority:
    """Return the one priority of a region: that of its shares, which is the same of all."""
    (priority,) = {share.priority for share in shares} or {quota.Priority.NORMAL}
    return priority


def _write_copy(file: int, index: int, copy: Any) -> None:
    """Write one copy so that a reader never takes a half-written one for valid."""
    base = _place_of_copy(index)
    raw = bytes(ffi.buffer(copy))
    os.pwrite(file, bytes(8), base)  # generation 0: not valid
    os.pwrite(file, raw[8:], base + 8)
    os.pwrite(file, raw[:8], base)


def _place_of_copy(index: int) -> int:
    return int(
        ffi.offsetof("struct quota_file", "limits") + index * ffi.sizeof("struct quota_limits")
    )


def check_count(shares: Sequence[Share]) -> None:
    """UsageError for shares of more devices than a region has, or of none."""
    if not 1 <= len(shares) <= layout.DEVICES:
        raise errors.UsageError(f"{len(shares)} devices: a region has 1 to {layout.DEVICES}")


def _take_room(file: int) -> None:
    os.posix_fallocate(file, 0, ffi.sizeof("struct quota_file"))


def _fill_quota(file: int, region_id: bytes, limits: Any) -> None:
    """Write the first copy of a file that nobody reads yet, and then what makes it one."""
    os.pwrite(file, ffi.buffer(limits), _place_of_copy(0))
    layout.QUOTA.write_header(file, region_id)


def _read_copies(file: int) -> tuple[Any, Any]:
    base = ffi.offsetof("struct quota_file", "limits")
    size = ffi.sizeof("struct quota_limits")
    first, second = ffi.new("struct quota_limits *"), ffi.new("struct quota_limits *")
    for index, copy in enumerate((first, second)):
        ffi.buffer(copy)[:] = layout.QUOTA.read(file, size, base + size * index)
    return first, second


def _is_valid(copy: Any) -> bool:
    counted = copy.generation != 0 and 1 <= copy.device_count <= layout.DEVICES
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
        green_reserve=entry.green_kib * 1024,
        policy=quota.Policy(entry.policy),
    )
