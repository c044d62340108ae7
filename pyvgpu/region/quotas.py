"""A region's `quota` file, which we write and its shims read: the limits on each device."""

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
_MPS: int = ffi.integer_const("POLICY_MPS")
_MIG_SHIFT: int = ffi.integer_const("QUOTA_MIG_SHIFT")

_GATED, _SUSPENDED, _KEPT = (
    int(ffi.integer_const(name)) for name in ("QUOTA_GATED", "QUOTA_SUSPENDED", "QUOTA_KEPT")
)
_COUNT_SHIFT: int = ffi.integer_const("QUOTA_SUSPENSIONS_SHIFT")
_COUNT_MASK: int = ffi.integer_const("QUOTA_SUSPENSIONS_MASK")

_OFFSET_BASIS, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a, 64 bits


@dataclasses.dataclass(frozen=True, slots=True)
class Suspension:
    """Whether the processes of a region are suspended."""

    gated: bool = False  # calls must not begin: they are being suspended, or are
    suspended: bool = False  # their device memory is in host memory
    kept: bool = False  # their reservation counts nevertheless

    @property
    def released(self) -> bool:
        """Whether others may reserve what the region had reserved."""
        return self.suspended and not self.kept


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of a quota file on one device."""

    uuid: str
    vcore: int
    vcore_limit: int
    vmemory: int  # bytes
    memory_total: int  # bytes of the whole device
    context_reserve: int  # bytes
    green_reserve: int  # bytes, in whole KiB
    policy: quota.TimePolicy
    isolation: quota.Isolation = quota.Isolation.QUOTA


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The current copy of the limits."""

    generation: int
    flags: int
    driver_release: str
    devices: tuple[DeviceLimits, ...]

    @property
    def priority(self) -> quota.Priority:
        """The priority among the tenants of a device."""
        for priority, flag in _PRIORITIES.items():
            if self.flags & flag:
                return priority
        return quota.Priority.NORMAL

    @property
    def suspension(self) -> Suspension:
        """Whether the processes are suspended."""
        return _suspension_of(self.flags)


def create_supervised(
    folder: int, region_id: bytes, driver_release: str, shares: Sequence[Share]
) -> int:
    """Create a region's quota in the open *folder*; return it, with its supervisor's lock held."""
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
    """Create the quota of a region without a supervisor: it is valid until it is removed.

    A container must map it through a read-only mount, because its owner may write to it.
    """
    file = os.open(name, layout.MAKE, 0o600, dir_fd=folder)
    try:
        _take_room(file)
        begin_quota(file, region_id, driver_release, shares)
    finally:
        os.close(file)


def prepare_quota(folder: int, name: str) -> None:
    """Create an empty quota file of full size, for :func:`begin_quota`."""
    file = os.open(name, layout.MAKE, 0o644, dir_fd=folder)
    try:
        _take_room(file)
    finally:
        os.close(file)


def begin_quota(file: int, region_id: bytes, driver_release: str, shares: Sequence[Share]) -> None:
    """Write the quota of a region without a supervisor into the open *file*, which is unused yet.

    UsageError for an invalid number of shares, DataError for invalid values.
    """
    check_count(shares)
    _fill_quota(file, region_id, _render(1, 0, driver_release, shares))
    os.fchmod(file, 0o644)


def read_extra_totals(file: int, devices: int) -> tuple[int, ...]:
    """Return the bytes measured beyond all charges, on each of the first *devices*."""
    if layout.QUOTA.layout_of(file) < 2:
        return (0,) * devices
    return layout.QUOTA.read_integers(file, "extra_total")[:devices]


def read_quota_id(file: int) -> bytes:
    """Return the region id in the open quota *file*; DataError if the file is not valid."""
    return layout.QUOTA.read_id(file)


def update(file: int, driver_release: str, shares: Sequence[Share]) -> None:
    """Write new limits into the open quota *file*: over the copy that is not current."""
    copies = _read_copies(file)
    now = read_limits(file)
    older = 0 if copies[0].generation != now.generation else 1
    _write_copy(file, older, _render(now.generation + 1, now.flags, driver_release, shares))


def mark(file: int, suspension: Suspension) -> None:
    """Write into the open quota *file* whether the processes are suspended; limits stay.

    Each call counts as a suspension, across which shims measure no times.
    """
    copies = _read_copies(file)
    generation = read_limits(file).generation
    older = 0 if copies[0].generation != generation else 1
    now = copies[1 - older]
    count = (now.flags >> _COUNT_SHIFT) + 1 & _COUNT_MASK
    flags = now.flags & ~(_COUNT_MASK << _COUNT_SHIFT | _GATED | _SUSPENDED | _KEPT)
    flags |= _GATED * suspension.gated | _SUSPENDED * suspension.suspended
    now.flags = flags | _KEPT * suspension.kept | count << _COUNT_SHIFT
    now.generation = generation + 1
    now.checksum = _checksum(now)
    _write_copy(file, older, now)


def renew(file: int) -> None:
    """Write the same limits as a new generation, so that shims note their next calls."""
    copies = _read_copies(file)
    generation = read_limits(file).generation
    older = 0 if copies[0].generation != generation else 1
    now = copies[1 - older]
    now.generation = generation + 1
    now.checksum = _checksum(now)
    _write_copy(file, older, now)


def close(file: int) -> None:
    """Revoke the open quota *file*: no process may join, and every allocation fails.

    Held memory stays, and launches are throttled to the minimum.
    """
    copies = _read_copies(file)
    valid = [copy for copy in copies if _is_valid(copy)]
    if not valid:
        return
    now = max(valid, key=lambda copy: int(copy.generation))
    older = 0 if copies[0].generation != now.generation else 1
    now.generation += 1
    now.flags |= SUPERVISED  # no process holds the supervisor's lock: the region is closed
    for entry in now.devices[0 : now.device_count]:
        entry.vmemory, entry.vcore, entry.vcore_limit = 0, 1, 1
        entry.policy = ffi.integer_const("POLICY_HARD")
    now.checksum = _checksum(now)
    _write_copy(file, older, now)


def read_generation(file: int) -> int:
    """Return the generation of the limits in the open quota *file*, to detect changes."""
    return max(int(copy.generation) for copy in _read_copies(file))


def read_limits(file: int) -> QuotaLimits:
    """Return the current limits in the open quota *file*; DataError if no copy is valid."""
    layout.QUOTA.layout_of(file)
    return _parse_limits(_read_current(file))


def read_suspension(file: int) -> Suspension:
    """Return the suspension in the open quota *file*, like ``read_limits(file).suspension``.

    Fast: the limits of the devices are not parsed.
    """
    layout.QUOTA.layout_of(file)
    return _suspension_of(_read_current(file).flags)


def limits_of(
    generation: int, flags: int, driver_release: str, shares: Sequence[Share]
) -> QuotaLimits:
    """Return the limits that a quota with these *shares* would have."""
    return _parse_limits(_render(generation, flags, driver_release, shares))


def publish_extra(file: int, extra: Mapping[tuple[int, int], int]) -> None:
    """Write into the open quota *file* the bytes by (device, slot) that no charge covers.

    Every sum of the ledger counts them from then on; words that *extra* does not name become 0.
    """
    if layout.QUOTA.layout_of(file) < 2:
        raise errors.DataError("quota: layout 1 has no room for measured bytes")
    rows = [[0] * layout.SLOTS for _ in range(layout.DEVICES)]
    for (index, slot), held in extra.items():
        if not (
            0 <= index < layout.DEVICES
            and 0 <= slot < layout.SLOTS
            and 0 <= held <= layout.BYTES // layout.SLOTS
        ):
            raise errors.DataError(f"extra={extra}: must be bytes by device and slot")
        rows[index][slot] = held
    # The shims count the totals; the rows attribute them to slots.
    totals = array.array("Q", map(sum, rows))
    words = array.array("Q", itertools.chain(*rows))
    os.pwrite(file, totals, ffi.offsetof("struct quota_file", "extra_total"))
    os.pwrite(file, words, ffi.offsetof("struct quota_file", "extra"))


def read_extra(file: int, devices: int) -> tuple[tuple[int, ...], ...]:
    """Return the bytes measured beyond all charges, of the first *devices*, by slot."""
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
            f"driver release {release!r}: is too long; must be such as 580.65.06"
        )
    copy.generation = generation
    copy.device_count = len(shares)
    kept = flags & ~sum(_PRIORITIES.values()) & (1 << _MIG_SHIFT) - 1
    instances = sum(
        1 << _MIG_SHIFT + index
        for index, share in enumerate(shares)
        if device.is_instance(share.device.uuid)
    )
    copy.flags = kept | _PRIORITIES[_priority(shares)] | instances
    copy.driver_release = encoded
    for entry, share in zip(copy.devices, shares, strict=False):
        entry.uuid = device.uuid_bytes(share.device.uuid)
        entry.vmemory = share.vmemory
        entry.context_reserve = share.device.context_bytes
        entry.green_kib = -(-share.device.green_bytes // 1024)
        entry.memory_total = share.device.memory_bytes
        entry.vcore = share.vcore
        entry.vcore_limit = share.vcore_limit
        entry.policy = _MPS if share.isolation is quota.Isolation.MPS else share.policy
    copy.checksum = _checksum(copy)
    return copy


def _priority(shares: Sequence[Share]) -> quota.Priority:
    """Return the priority of a region, which is the same for all its shares."""
    (priority,) = {share.priority for share in shares} or {quota.Priority.NORMAL}
    return priority


def _write_copy(file: int, index: int, copy: Any) -> None:
    """Write one copy, so that a half-written one never looks valid to a reader."""
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
    """Raise UsageError for no shares, or of more devices than a region can have."""
    if not 1 <= len(shares) <= layout.DEVICES:
        raise errors.UsageError(f"{len(shares)} devices: a region has 1 to {layout.DEVICES}")


def _take_room(file: int) -> None:
    os.posix_fallocate(file, 0, ffi.sizeof("struct quota_file"))


def _fill_quota(file: int, region_id: bytes, limits: Any) -> None:
    """Write the first copy of a file that no process reads yet, and then the header."""
    os.pwrite(file, ffi.buffer(limits), _place_of_copy(0))
    layout.QUOTA.write_header(file, region_id)


def _read_copies(file: int) -> tuple[Any, Any]:
    base = ffi.offsetof("struct quota_file", "limits")
    size = ffi.sizeof("struct quota_limits")
    first, second = ffi.new("struct quota_limits *"), ffi.new("struct quota_limits *")
    for index, copy in enumerate((first, second)):
        ffi.buffer(copy)[:] = layout.QUOTA.read(file, size, base + size * index)
    return first, second


def _read_current(file: int) -> Any:
    """Return the copy of the limits that counts; DataError if neither is valid."""
    valid = [copy for copy in _read_copies(file) if _is_valid(copy)]
    if not valid:
        raise errors.DataError("quota: neither copy of the limits is valid")
    return max(valid, key=lambda copy: int(copy.generation))


def _suspension_of(flags: int) -> Suspension:
    return Suspension(bool(flags & _GATED), bool(flags & _SUSPENDED), bool(flags & _KEPT))


def _is_valid(copy: Any) -> bool:
    counted = copy.generation != 0 and 1 <= copy.device_count <= layout.DEVICES
    return bool(counted and copy.checksum == _checksum(copy))


def _checksum(copy: Any) -> int:
    return _hash(bytes(ffi.buffer(copy, ffi.offsetof("struct quota_limits", "checksum"))))


@functools.lru_cache(maxsize=512)  # limits are mostly unchanged since the last read
def _hash(content: bytes) -> int:
    value = _OFFSET_BASIS
    for byte in content:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def _parse_limits(copy: Any) -> QuotaLimits:
    release = bytes(ffi.buffer(copy.driver_release)).split(b"\0")[0].decode("ascii", "replace")
    if not release.isprintable():
        raise errors.DataError("quota: the driver release is not printable")
    return QuotaLimits(
        generation=copy.generation,
        flags=copy.flags,
        driver_release=release,
        devices=tuple(
            _parse_device(copy.devices[i], instance=bool(copy.flags >> _MIG_SHIFT + i & 1))
            for i in range(copy.device_count)
        ),
    )


def _parse_device(entry: Any, *, instance: bool) -> DeviceLimits:
    if entry.policy not in (*quota.TimePolicy, _MPS) or entry.vmemory > quantity.MAXIMUM_BYTES:
        raise errors.DataError("quota: a device's limits are not valid")
    mps = entry.policy == _MPS
    return DeviceLimits(
        uuid=device.uuid_text(bytes(ffi.buffer(entry.uuid)), instance=instance),
        vcore=entry.vcore,
        vcore_limit=entry.vcore_limit,
        vmemory=entry.vmemory,
        memory_total=entry.memory_total,
        context_reserve=entry.context_reserve,
        green_reserve=entry.green_kib * 1024,
        policy=quota.TimePolicy.HARD if mps else quota.TimePolicy(entry.policy),
        isolation=quota.Isolation.MPS if mps else quota.Isolation.QUOTA,
    )
