"""The two files of a region: `quota`, which we write, and `usage`, which the shims write.

layout    binary layout of both
quotas    limits: create, change, close, read
usages    live processes of a region, and the shims' accounting of each
words     decoding of numbers in `usage`; compiled
checks    values in `usage` that no shim writes
"""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING

from pyvgpu import locks, names
from pyvgpu.region import layout, quotas
from pyvgpu.region.checks import find_impossible
from pyvgpu.region.layout import DEVICES, SLOTS
from pyvgpu.region.quotas import (
    SUPERVISED,
    DeviceLimits,
    QuotaLimits,
    Suspension,
    begin_quota,
    close,
    create_quota,
    limits_of,
    mark,
    prepare_quota,
    publish_extra,
    read_extra,
    read_extra_totals,
    read_generation,
    read_limits,
    read_quota_id,
    read_suspension,
    renew,
    update,
)
from pyvgpu.region.usages import (
    USAGE_BYTES,
    Activity,
    Compute,
    DeviceUsage,
    SlotUsage,
    Usage,
    create_usage,
    read_activity,
    read_compute,
    read_counted_slots,
    read_exporters,
    read_figures,
    read_raw_slots,
    read_settled_usage,
    read_slots,
    read_usage,
    read_usage_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyvgpu.share import Share

__all__ = [
    "DEVICES",
    "SLOTS",
    "SUPERVISED",
    "USAGE_BYTES",
    "Activity",
    "Compute",
    "DeviceLimits",
    "DeviceUsage",
    "QuotaLimits",
    "SlotUsage",
    "Suspension",
    "Usage",
    "begin_quota",
    "close",
    "create",
    "create_quota",
    "create_usage",
    "find_impossible",
    "is_alive",
    "is_supervised",
    "is_used",
    "known_layouts",
    "limits_of",
    "mark",
    "prepare_quota",
    "publish_extra",
    "read_activity",
    "read_compute",
    "read_counted_slots",
    "read_exporters",
    "read_extra",
    "read_extra_totals",
    "read_figures",
    "read_generation",
    "read_held",
    "read_limits",
    "read_quota_id",
    "read_raw_slots",
    "read_settled_usage",
    "read_slots",
    "read_suspension",
    "read_usage",
    "read_usage_id",
    "renew",
    "update",
    "wait_until_dead",
    "wait_until_unsupervised",
]

# The locks of supervisor and processes: file, first byte, bytes.
_LIVING = (
    (names.QUOTA_FILE, layout.SUPERVISOR_BYTE, 1),
    (names.USAGE_FILE, layout.SLOT_BYTE, SLOTS),
)


def known_layouts() -> tuple[int, ...]:
    """Return the layouts of quotas and ledgers that we read; we write the highest."""
    return tuple(layout.QUOTA.sizes)


def create(folder: int, driver_release: str, shares: Sequence[Share]) -> int:
    """Create both files in the open *folder*; return `quota`, open, with its supervisor's lock.

    All space is allocated now, so that a full disk fails here and not in the tenant.
    """
    quotas.check_count(shares)
    return quotas.create_supervised(folder, create_usage(folder), driver_release, shares)


def read_held(quota: int, usage: int, devices: int) -> tuple[int, ...]:
    """Return the bytes that a region holds on each of its first *devices*.

    The sum that its shims compare with the limit: live processes, exports of dead ones that are
    still open, and bytes measured beyond all charges.
    """
    charged = read_settled_usage(usage, devices).charged
    return tuple(map(operator.add, charged, quotas.read_extra_totals(quota, devices)))


def is_alive(folder: int) -> bool:
    """Return whether the supervisor or any process of the region in *folder* is alive."""
    return any(locks.is_held(*locked) for locked in _of_the_living(folder))


def is_used(usage: int) -> bool:
    """Return whether any process has a slot of the open file *usage*."""
    return locks.is_held(usage, layout.SLOT_BYTE, SLOTS)


def is_supervised(folder: int) -> bool:
    """Return whether the supervisor of the region in *folder* is alive."""
    return any(locks.is_held(*locked) for locked in _of_the_living(folder, _LIVING[:1]))


def wait_until_unsupervised(folder: int) -> None:
    """Sleep until the supervisor of the region in *folder* is dead."""
    for locked in _of_the_living(folder, _LIVING[:1]):
        locks.wait_free(*locked)


def wait_until_dead(folder: int) -> None:
    """Sleep until the supervisor and all processes of the region in *folder* are dead."""
    for locked in _of_the_living(folder):
        locks.wait_free(*locked)


def _of_the_living(
    folder: int, living: Sequence[tuple[str, int, int]] = _LIVING
) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges that live processes lock: an open file, the first byte and the length.

    A missing file is skipped.
    """
    for name, byte, length in living:
        try:
            file = os.open(name, layout.READ, dir_fd=folder)
        except OSError:
            continue
        try:
            yield file, byte, length
        finally:
            os.close(file)
