"""Detection of values in a usage file that no shim writes."""

import os
import random
import struct

import pytest

from pyvgpu import locks, quota, region
from pyvgpu._region import ffi
from pyvgpu.device import Device
from pyvgpu.share import Share

GIB = 1 << 30
DEVICE = Device("GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", 0, "H100", 80 * GIB, 512 << 20)
SLOT_BYTE = ffi.integer_const("USAGE_LOCK_SLOT")


def place(field, *indexes):
    """Return where a field of the usage file is, of a slot or row."""
    return ffi.offsetof("struct usage_file", field, *indexes)


@pytest.fixture
def files(tmp_path):
    """The quota and the usage file of a region in which slot 0 is taken."""
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    limits = region.create(folder, "1.0", [Share(DEVICE, 30, 4 * GIB, quota.TimePolicy.HARD)])
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    taken = os.open("usage", os.O_RDWR, dir_fd=folder)
    assert locks.take(taken, SLOT_BYTE)
    os.pwrite(usage, struct.pack("<IIQ16s", 7, 0, 1, b"train"), place("slots"))
    os.pwrite(usage, struct.pack("<I", 1), place("high_water"))
    os.pwrite(usage, struct.pack("<Q", GIB), place("charged"))
    yield limits, usage
    for file in (folder, limits, usage, taken):
        os.close(file)


def test_files_written_by_a_shim_are_valid(files):
    limits, usage = files
    assert region.find_impossible(usage, limits) == ()


@pytest.mark.parametrize(
    ("where", "what", "expected"),
    [
        (place("high_water"), struct.pack("<I", 0), "slot 0 is taken, and not below the high"),
        (place("high_water"), struct.pack("<I", 4096), "its high-water mark is 4096, of 1024"),
        (place("slots"), bytes(64), "slot 0 is taken, but names no process"),
        (place("slots", 0, "started_ns"), bytes(8), "slot 0 names a process that never started"),
        (place("slots", 0, "state"), struct.pack("<I", 7), "slot 0 has state 7"),
        (place("slots", 0, "name"), b"x" * 16, "slot 0 has a process name without a terminator"),
        (place("charged", 0, 0), struct.pack("<Q", 81 * GIB), "slot 0 has a charge of 81GiB on a"),
        (place("charged", 5, 9), struct.pack("<Q", 1), "it has charges of more devices than the"),
        (place("orphaned", 0), struct.pack("<Q", 1 << 45), "it has 32TiB of ended processes on a"),
        (place("link_end"), struct.pack("<I", 9000), "it has 9000 links, of at most 8192"),
        (None, bytes(16), "it is the usage file of another region"),
    ],
)
def test_invalid_values_are_named(files, where, what, expected):
    limits, usage = files
    if where is None:
        where = ffi.offsetof("struct region_header", "region_id")
    os.pwrite(usage, what, where)
    found = region.find_impossible(usage, limits)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (struct.pack("<Q", 2047 | 0x8000), "link 0 is of slot 2046"),
        (struct.pack("<Q", 1 | 3 << 11 | 0x8000), "link 0 is of device 3, of 1"),
    ],
)
def test_invalid_links_are_named(files, word, expected):
    limits, usage = files
    os.pwrite(usage, struct.pack("<I", 1), place("link_end"))
    os.pwrite(usage, word, place("links"))
    assert region.find_impossible(usage, limits) == (expected,)


def test_a_charge_that_is_not_decided_may_have_any_value(files):
    limits, usage = files
    os.pwrite(usage, struct.pack("<Q", 1 << 52 | 81 * GIB), place("charged"))
    assert region.find_impossible(usage, limits) == ()


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (127, ()),
        (128, ("slot 128 has a reserved block, for which its file has no state",)),
    ],
)
def test_a_reserved_block_without_a_state_is_named(files, slot, expected):
    limits, usage = files
    taken = os.open(f"/proc/self/fd/{usage}", os.O_RDWR)
    assert locks.take(taken, SLOT_BYTE + slot)
    os.pwrite(usage, struct.pack("<IIQ16s", 8, 0, 1, b"train"), place("slots", slot))
    os.pwrite(usage, struct.pack("<I", slot + 1), place("high_water"))
    os.pwrite(usage, struct.pack("<Q", 1 << 51 | 2 << 20), place("charged", 0, slot))
    found = region.find_impossible(usage, limits)
    os.close(taken)
    assert found == expected


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda usage: os.pwrite(usage, bytes(8), 0), "usage: not a usage file (wrong magic)"),
        (lambda usage: os.truncate(usage, 0), "usage: is too short, it ends at 0 bytes"),
        (lambda usage: os.truncate(usage, 100), "usage: is too short, it ends at 100 bytes"),
    ],
    ids=["no header", "empty", "cut off"],
)
def test_a_damaged_file_is_named_and_counts_nothing(files, damage, expected):
    limits, usage = files
    damage(usage)
    assert region.find_impossible(usage, limits) == (expected,)
    (left,) = region.read_counted_slots(usage, 2)
    assert (left.slot, left.pid, left.charged) == (0, 0, (0, 0))


def test_garbage_is_read_without_an_error(files):
    limits, usage = files
    size = os.fstat(usage).st_size
    for seed in range(8):
        os.pwrite(usage, random.Random(seed).randbytes(size - 64), 64)
        assert region.find_impossible(usage, limits)
        assert [slot.slot for slot in region.read_counted_slots(usage, 1)] == [0]


def test_slots_beyond_the_high_water_mark_count_nothing(files):
    _, usage = files
    assert [slot.charged for slot in region.read_counted_slots(usage, 1)] == [(GIB,)]
    os.pwrite(usage, struct.pack("<I", 0), place("high_water"))
    assert [slot.charged for slot in region.read_counted_slots(usage, 1)] == [(0,)]
