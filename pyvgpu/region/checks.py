"""Structural checks of a usage file: values that no shim writes.

A usage file is written by the processes that it counts, so a program can write anything into it.
A shim obeys rules, and this module reports the values that break one. Some rules do not hold for
an instant while a process takes a slot; so only values found by two checks count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu._region import ffi
from pyvgpu.region import layout, quotas, usages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyvgpu.region.quotas import DeviceLimits

_STATES = (0, ffi.integer_const("SLOT_DEAD"))
_LINKS: int = ffi.integer_const("REGION_LINKS")
_SLOT_MASK: int = ffi.integer_const("LINK_SLOT_MASK")
_DEVICE_SHIFT: int = ffi.integer_const("LINK_DEVICE_SHIFT")
_DEVICE_MASK: int = ffi.integer_const("LINK_DEVICE_MASK")


def find_impossible(usage: int, quota: int) -> tuple[str, ...]:
    """Return the values of the open *usage* file that no shim of *quota*'s region would write."""
    limits = quotas.read_limits(quota).devices
    try:
        found = _poll(usage, quota, limits)
        if found:  # a process that takes or leaves a slot breaks a rule for an instant
            again = _poll(usage, quota, limits)
            found = tuple(text for text in found if text in again)
    except errors.DataError as exc:
        return (str(exc),)
    return found


def _poll(usage: int, quota: int, limits: Sequence[DeviceLimits]) -> tuple[str, ...]:
    number = layout.USAGE.layout_of(usage)
    if layout.USAGE.read_id(usage) != quotas.read_quota_id(quota):
        return ("it is the usage file of another region",)
    alive = usages.slots_alive(usage)
    return (
        *_of_slots(usage, alive),
        *_of_charges(usage, number, alive, limits),
        *(_of_links(usage, len(limits)) if number > 1 else ()),
    )


def _of_slots(usage: int, alive: Sequence[int]) -> Iterator[str]:
    end = usages.read_high_water(usage)
    if end > layout.SLOTS:
        yield f"its high-water mark is {end}, of {layout.SLOTS} slots"
    record = ffi.new("struct usage_slot *")
    size = ffi.sizeof("struct usage_slot")
    base = ffi.offsetof("struct usage_file", "slots")
    for slot in alive:
        ffi.buffer(record)[:] = layout.USAGE.read(usage, size, base + size * slot)
        if slot >= end:
            yield f"slot {slot} is taken, and not below the high-water mark, {end}"
        if not record.pid:
            yield f"slot {slot} is taken, but names no process"
        elif not record.started_ns:
            yield f"slot {slot} names a process that never started"
        if record.state not in _STATES:
            yield f"slot {slot} has state {record.state}"
        if record.name[15] != b"\0":
            yield f"slot {slot} has a process name without a terminator"


def _of_charges(
    usage: int, number: int, alive: Sequence[int], limits: Sequence[DeviceLimits]
) -> Iterator[str]:
    size = 8 * layout.SLOTS
    base = ffi.offsetof("struct usage_file", "charged")
    for index, device in enumerate(limits):
        words = memoryview(layout.USAGE.read(usage, size, base + size * index)).cast("Q")
        for slot in alive:
            if words[slot] & layout.BLOCK and not (
                number >= layout.BLOCKS_SINCE and slot < layout.BLOCK_SLOTS
            ):
                yield f"slot {slot} has a reserved block, for which its file has no state"
            if words[slot] > layout.UNDECIDED:
                continue  # it has charges that are still undecided, perhaps forever
            charged = words[slot] & layout.BYTES
            if charged > device.memory_total:
                yield (
                    f"slot {slot} has a charge of {quantity.format_size(charged)} on a device "
                    f"of {quantity.format_size(device.memory_total)}"
                )
    count = len(limits)
    beyond = layout.USAGE.read(usage, size * (layout.DEVICES - count), base + size * count)
    if beyond.strip(b"\0"):
        yield f"it has charges of more devices than the quota's {count}"
    orphaned = layout.USAGE.read_integers(usage, "orphaned")
    for index, device in enumerate(limits):
        if orphaned[index] > device.memory_total:
            yield f"it has {quantity.format_size(orphaned[index])} of ended processes on a device"


def _of_links(usage: int, devices: int) -> Iterator[str]:
    end = _read_link_end(usage)
    if end > _LINKS:
        yield f"it has {end} links, of at most {_LINKS}"
        return
    size = ffi.sizeof("struct usage_link")
    raw = layout.USAGE.read(usage, size * end, ffi.offsetof("struct usage_file", "links"))
    for place, word in enumerate(memoryview(raw).cast("Q")[::2]):
        owner, device = word & _SLOT_MASK, word >> _DEVICE_SHIFT & _DEVICE_MASK
        if word and not 1 <= owner <= layout.SLOTS:
            yield f"link {place} is of slot {owner - 1}"
        elif word and device >= devices:
            yield f"link {place} is of device {device}, of {devices}"


def _read_link_end(usage: int) -> int:
    raw = layout.USAGE.read(usage, 4, ffi.offsetof("struct usage_file", "link_end"))
    return int.from_bytes(raw, "little")
