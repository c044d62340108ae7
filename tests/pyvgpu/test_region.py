import contextlib
import dataclasses
import fcntl
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import old_region
import pytest

from pyvgpu import device, errors, locks, quota, region
from pyvgpu._region import ffi
from pyvgpu.device import Device
from pyvgpu.region import layout, shared_memory
from pyvgpu.share import Share

GIB = 1 << 30
DEVICE = Device("GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", 0, "H100", 80 * GIB, 512 << 20)
CSRC = Path(__file__).parents[2] / "csrc"


@pytest.fixture
def folder(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def a_share(vmemory=4 * GIB, policy=quota.TimePolicy.HARD):
    return Share(DEVICE, 30, vmemory, policy)


def structs():
    return list(ffi.list_types()[1])


def test_every_offset_equals_that_in_c(tmp_path):
    expected, lines = [], []
    for name in structs():
        expected.append(f"{name} {ffi.sizeof('struct ' + name)}")
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, facts in ffi.typeof(f"struct {name}").fields:
            expected.append(f"{name}.{field} {facts.offset}")
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include "core/region.h"\n#include <stddef.h>\n#include <stdio.h>\n'
        "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "offsets"
    subprocess.run(["gcc", "-I", CSRC, source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True)
    assert "quota_file" in structs()
    assert "usage_file" in structs()
    assert printed.stdout.splitlines() == expected


def test_limits_are_read_back_as_written(folder):
    file = region.create(folder, "580.65.06", [a_share(policy=quota.TimePolicy.ELASTIC)])
    limits = region.read_limits(file)
    os.close(file)
    assert limits == region.QuotaLimits(
        generation=1,
        flags=region.SUPERVISED,
        driver_release="580.65.06",
        devices=(
            region.DeviceLimits(
                uuid=DEVICE.uuid,
                vcore=30,
                vcore_limit=100,
                vmemory=4 * GIB,
                memory_total=80 * GIB,
                context_reserve=512 << 20,
                green_reserve=0,
                policy=quota.TimePolicy.ELASTIC,
            ),
        ),
    )


@pytest.mark.parametrize("priority", quota.Priority)
def test_the_priority_is_read_back_and_changes(folder, priority):
    file = region.create(folder, "1.0", [a_share()])
    assert region.read_limits(file).priority is quota.Priority.NORMAL
    for wanted in (priority, quota.Priority.HIGH, quota.Priority.NORMAL):
        region.update(file, "1.0", [dataclasses.replace(a_share(), priority=wanted)])
        limits = region.read_limits(file)
        assert limits.priority is wanted
        assert limits.flags & region.SUPERVISED, "what else the flags say stays"
    os.close(file)


def test_new_region_allocates_all_its_space_with_the_right_modes(folder, tmp_path):
    os.close(region.create(folder, "1.0", [a_share()]))
    for name, mode in (("quota", 0o444), ("usage", 0o644)):
        found = (tmp_path / name).stat()
        assert found.st_mode & 0o777 == mode
        assert found.st_size == ffi.sizeof(f"struct {name}_file")
        assert found.st_blocks * 512 >= found.st_size
    ids = {(tmp_path / name).read_bytes()[16:32] for name in ("quota", "usage")}
    assert len(ids) == 1
    assert ids != {bytes(16)}


def test_update_writes_the_other_copy_and_increments(folder):
    file = region.create(folder, "1.0", [a_share()])
    for round_number, size in enumerate((5 * GIB, 6 * GIB, 7 * GIB), 2):
        region.update(file, "1.0", [a_share(size)])
        limits = region.read_limits(file)
        assert (limits.generation, limits.devices[0].vmemory) == (round_number, size)
    os.close(file)


@pytest.mark.parametrize("written", [0, 8, 100, 900])
def test_writer_that_dies_half_way_leaves_the_old_limits(folder, written):
    file = region.create(folder, "1.0", [a_share()])
    base = ffi.offsetof("struct quota_file", "limits") + ffi.sizeof("struct quota_limits")
    os.pwrite(file, struct.pack("Q", 99) + bytes([7] * written), base)
    assert region.read_limits(file).devices[0].vmemory == 4 * GIB
    os.close(file)


def test_no_valid_copy_is_an_error(folder):
    file = region.create(folder, "1.0", [a_share()])
    os.pwrite(file, b"\1", ffi.offsetof("struct quota_file", "limits") + 60)
    with pytest.raises(errors.DataError, match="neither copy"):
        region.read_limits(file)
    os.close(file)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        pytest.param((0, b"x"), "not a quota file", id="wrong magic"),
        pytest.param((8, b"\x09"), "layout 9: this pyvgpu supports 1 to 5", id="another layout"),
        pytest.param((12, b"\x09"), "too short", id="another size"),
    ],
)
def test_invalid_quota_files_are_refused(folder, damage, problem):
    file = region.create(folder, "1.0", [a_share()])
    os.pwrite(file, damage[1], damage[0])
    with pytest.raises(errors.DataError, match=problem):
        region.read_limits(file)
    os.close(file)


def test_short_quota_file_is_refused(folder, tmp_path):
    file = region.create(folder, "1.0", [a_share()])
    os.ftruncate(file, 100)
    with pytest.raises(errors.DataError, match="too short"):
        region.read_limits(file)
    os.close(file)


def test_region_lives_while_its_supervisor_or_a_slot_does(folder):
    file = region.create(folder, "1.0", [a_share()])
    assert region.is_alive(folder)
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT") + 700)
    os.close(file)
    assert region.is_alive(folder)
    os.close(usage)
    assert not region.is_alive(folder)


def test_wait_until_dead_includes_the_supervisor(folder):
    supervisor = region.create(folder, "1.0", [a_share()])
    found = []

    def wait():
        region.wait_until_dead(folder)
        found.append(region.is_alive(folder))

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.2)  # long enough to return too early
    os.close(supervisor)
    waiter.join()
    assert found == [False]


@pytest.mark.parametrize("gone", [("quota",), ("usage",), ("quota", "usage")])
def test_wait_until_dead_ignores_missing_files(folder, gone):
    os.close(region.create(folder, "1.0", [a_share()]))
    for name in gone:
        os.unlink(name, dir_fd=folder)
    region.wait_until_dead(folder)
    assert not region.is_alive(folder)


def test_usage_file_behind_a_link_is_not_read(folder):
    os.close(region.create(folder, "1.0", [a_share()]))
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT") + 700)
    assert region.is_alive(folder)
    os.rename("usage", "other", src_dir_fd=folder, dst_dir_fd=folder)
    os.symlink("other", "usage", dir_fd=folder)
    assert not region.is_alive(folder)
    os.close(usage)


@pytest.mark.parametrize(
    ("state", "held"),
    [
        pytest.param("BLOCK_USED", 5 << 20, id="used"),
        pytest.param("BLOCK_CACHED", 3 << 20, id="reserved"),
        pytest.param("BLOCK_TAKEN", 3 << 20, id="taken"),
    ],
)
@pytest.mark.parametrize("number", [0, 1, (1 << 30) - 1])
def test_reserved_block_is_not_usage(folder, state, held, number):
    os.close(region.create(folder, "1.0", [a_share()]))
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    flag = 1 << ffi.integer_const("LEDGER_BLOCK_SHIFT")
    charged = ffi.offsetof("struct usage_file", "charged")
    os.pwrite(usage, struct.pack("Q", flag | 5 << 20), charged + 8 * 3)
    blocks = ffi.offsetof("struct usage_file", "blocks")
    os.pwrite(usage, struct.pack("I", number << 2 | ffi.integer_const(state)), blocks + 64 * 3)
    os.pwrite(usage, struct.pack("I", 8), ffi.offsetof("struct usage_file", "high_water"))
    assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT") + 3)
    reader = os.open("usage", os.O_RDONLY, dir_fd=folder)
    found = region.read_usage(reader, 1)
    assert (found.charged, found.undecided) == ((held,), False)
    assert [slot.charged for slot in region.read_counted_slots(reader, 1)] == [(held,)]
    assert region.read_figures(reader, 1)[1][0].charged == held


def test_usage_counts_live_slots_alone(folder):
    os.close(region.create(folder, "1.0", [a_share()]))
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    charged = ffi.offsetof("struct usage_file", "charged")
    pending = 1 << ffi.integer_const("LEDGER_PENDING_SHIFT")
    for slot, size in ((2, 1000), (3, 2000 | pending), (4, 4000)):
        os.pwrite(usage, struct.pack("Q", size), charged + 8 * slot)
    slots = ffi.offsetof("struct usage_file", "slots")
    record = struct.pack("IIQ16sQ", 77, 0, 5, b"trainer", 6)
    os.pwrite(usage, record, slots + 3 * ffi.sizeof("struct usage_slot"))
    os.pwrite(usage, struct.pack("Q", 9), ffi.offsetof("struct usage_file", "refused"))
    for slot in (2, 3):
        assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT") + slot)
    reader = os.open("usage", os.O_RDONLY, dir_fd=folder)
    found = region.read_usage(reader)
    assert found.charged[0] == 3000
    assert found.refused[0] == 9
    assert region.read_figures(reader, 1) == (2, (region.DeviceUsage(3000, 9, 0, 0, 0),))
    assert [slot.slot for slot in found.slots] == [2, 3]
    trainer = found.slots[1]
    assert (trainer.pid, trainer.name, trainer.refused) == (77, "trainer", 6)
    assert trainer.charged[0] == 2000
    assert found.undecided
    os.pwrite(
        usage, (2000).to_bytes(8, "little"), ffi.offsetof("struct usage_file", "charged") + 24
    )
    assert not region.read_usage(reader).undecided
    os.close(reader)
    os.close(usage)


def test_charges_that_stay_undecided_are_not_read_with_all_links_each_time(folder):
    """As in a file that a program filled with garbage, whose links take long to read."""
    os.close(region.create(folder, "1.0", [a_share()]))
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    charged = ffi.offsetof("struct usage_file", "charged")
    os.pwrite(usage, b"\xff" * 8, charged + 8 * 2)
    assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT") + 2)
    reader = os.open("usage", os.O_RDONLY, dir_fd=folder)
    reads = []

    def count(frame, event, _):
        if event == "call" and frame.f_code is region.read_usage.__code__:
            reads.append(frame)

    sys.setprofile(count)
    try:
        assert region.read_settled_usage(reader).undecided
    finally:
        sys.setprofile(None)
    assert len(reads) < 10
    os.close(reader)
    os.close(usage)


def test_files_of_layout_1_are_read(tmp_path):
    uuid = device.uuid_bytes(DEVICE.uuid)
    (tmp_path / "quota").write_bytes(old_region.quota(uuid, 3 * GIB, "535.1"))
    (tmp_path / "usage").write_bytes(old_region.usage({0: 1000, 1: 2000}, orphaned=7))
    with (tmp_path / "quota").open("r+b") as file:
        limits = region.read_limits(file.fileno())
        assert (limits.driver_release, limits.devices[0].vmemory) == ("535.1", 3 * GIB)
        assert sum(map(sum, region.read_extra(file.fileno(), 16))) == 0
        with pytest.raises(errors.DataError, match="layout 1 has no room"):
            region.publish_extra(file.fileno(), {(0, 0): 5})
    with (tmp_path / "usage").open("r+b") as file, (tmp_path / "usage").open("rb") as reader:
        assert locks.take(file.fileno(), ffi.integer_const("USAGE_LOCK_SLOT") + 1)
        found = region.read_usage(reader.fileno())
        assert region.read_figures(reader.fileno(), 1)[1][0].charged == 2007
    assert found.charged[0] == 2007
    assert found.orphaned[0] == 7
    assert [slot.pid for slot in found.slots] == [4711]


def published(file):
    """Return the measured bytes, by device and slot, and the sums of the first devices."""
    rows = enumerate(region.read_extra(file, 16))
    totals = os.pread(file, 24, ffi.offsetof("struct quota_file", "extra_total"))
    return (
        {(index, slot): held for index, row in rows for slot, held in enumerate(row) if held},
        list(struct.unpack("3Q", totals)),
    )


def test_measured_memory_is_published_by_slot_and_as_a_sum(folder):
    file = region.create(folder, "1.0", [a_share()])
    assert published(file) == ({}, [0, 0, 0])
    region.publish_extra(file, {(0, 3): 100, (0, 1023): 20, (1, 0): 7})
    assert published(file) == ({(0, 3): 100, (0, 1023): 20, (1, 0): 7}, [120, 7, 0])
    region.publish_extra(file, {(1, 0): 7})
    assert published(file) == ({(1, 0): 7}, [0, 7, 0])
    assert region.read_limits(file).devices[0].vmemory == 4 * GIB
    os.close(file)


@pytest.mark.parametrize(
    "extra", [{(0, 1024): 1}, {(0, -1): 1}, {(16, 0): 1}, {(0, 0): -1}, {(0, 0): 1 << 52}]
)
def test_invalid_measurements_are_not_published(folder, extra):
    file = region.create(folder, "1.0", [a_share()])
    region.publish_extra(file, {(0, 0): 5})
    with pytest.raises(errors.DataError, match="extra="):
        region.publish_extra(file, extra)
    assert published(file) == ({(0, 0): 5}, [5, 0, 0])
    os.close(file)


EXPORT, IMPORT, CARRIED, UNTRACKED = (
    ffi.integer_const(f"LINK_{name}") for name in ("EXPORT", "IMPORT", "CARRIED", "UNTRACKED")
)


def a_link(slot, kind, key=5, held=0, on=0):
    return shared_memory.SharedEntry(
        key << ffi.integer_const("LINK_HASH_SHIFT") | kind | on << 11 | slot + 1, held
    )


@pytest.mark.parametrize(
    ("table", "left"),
    [
        pytest.param([a_link(1, EXPORT, held=10)], 0, id="no process has it"),
        pytest.param([a_link(1, EXPORT, held=10), a_link(0, IMPORT)], 10, id="the living have it"),
        pytest.param([a_link(1, EXPORT, held=10), a_link(0, IMPORT, 6)], 0, id="another key"),
        pytest.param([a_link(1, EXPORT, held=10), a_link(2, IMPORT)], 0, id="the dead have it"),
        pytest.param([a_link(1, EXPORT, held=99), a_link(0, IMPORT)], 40, id="more than charged"),
        pytest.param([a_link(0, EXPORT, held=10), a_link(0, IMPORT)], 0, id="its owner lives"),
        pytest.param([a_link(1, EXPORT | CARRIED, held=10)], 10, id="in a descriptor"),
        pytest.param([a_link(1, EXPORT | UNTRACKED, held=10)], 10, id="without a known end"),
        pytest.param([a_link(1, EXPORT, held=10, on=1), a_link(0, IMPORT)], 0, id="elsewhere"),
        pytest.param(
            [shared_memory.SharedEntry(2, 10), shared_memory.SharedEntry(0, 10)],
            0,
            id="half-written",
        ),
    ],
)
def test_exports_of_dead_processes_are_charged_while_others_may_hold_them(table, left):
    charged = [[100, 40, 50], [0, 0, 0]]
    assert shared_memory.orphaned(table, {0}, charged) == (left, 0)


def test_orphaned_bytes_are_read_from_the_file(folder):
    os.close(region.create(folder, "1.0", [a_share()]))
    usage = os.open("usage", os.O_RDWR, dir_fd=folder)
    os.pwrite(usage, struct.pack("QQ", 1000, 300), ffi.offsetof("struct usage_file", "charged"))
    table = [a_link(1, EXPORT, held=200), a_link(0, IMPORT)]
    os.pwrite(usage, struct.pack("I", 2), ffi.offsetof("struct usage_file", "link_end"))
    words = struct.pack("QQQQ", *(part for link in table for part in (link.word, link.bytes)))
    os.pwrite(usage, words, ffi.offsetof("struct usage_file", "links"))
    assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT"))
    reader = os.open("usage", os.O_RDONLY, dir_fd=folder)
    found = region.read_usage(reader)
    os.close(reader)
    os.close(usage)
    assert found.orphaned[0] == 200
    assert found.charged[0] == 1200


COUNTED = {
    "a slot's record": ("slots", 8),
    "a charge": ("charged", 0),
    "the high-water mark": ("high_water", 0),
    "the state of a block": ("blocks", 0),
    "a link": ("link_end", 0),
}


@pytest.mark.parametrize(("field", "behind"), COUNTED.values(), ids=COUNTED)
def test_raw_slots_differ_with_all_that_counts(folder, field, behind):
    region.create_usage(folder)
    with usage_in(folder) as file, usage_in(folder) as process:
        assert locks.take(process, layout.SLOT_BYTE)
        before = region.read_raw_slots(file, 1)
        at = ffi.offsetof("struct usage_file", "scanned_ns")
        os.pwrite(file, b"\1", at)
        assert region.read_raw_slots(file, 1) == before
        os.pwrite(file, b"\1", ffi.offsetof("struct usage_file", field) + behind)
        assert region.read_raw_slots(file, 1) != before


def test_raw_slots_differ_with_the_processes_even_if_the_file_is_damaged(folder):
    region.create_usage(folder)
    with usage_in(folder) as file, usage_in(folder) as process:
        for _ in range(2):
            before = region.read_raw_slots(file, 1)
            assert region.read_raw_slots(file, 1) == before
            assert locks.take(process, layout.SLOT_BYTE + 1)
            assert region.read_raw_slots(file, 1) != before
            fcntl.fcntl(
                process, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, *[0] * 4)
            )
            os.ftruncate(file, 100)


@contextlib.contextmanager
def usage_in(folder):
    file = os.open("usage", os.O_RDWR, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


SUSPENSIONS = [region.Suspension(), region.Suspension(True), region.Suspension(True, True, True)]


@pytest.mark.parametrize("suspension", SUSPENSIONS)
def test_suspension_is_read_alone(folder, suspension):
    region.create_quota(folder, "quota", bytes(16), "580.65.06", [a_share()])
    file = os.open("quota", os.O_RDWR, dir_fd=folder)
    region.mark(file, suspension)
    assert region.read_suspension(file) == region.read_limits(file).suspension == suspension
    os.ftruncate(file, 100)
    with pytest.raises(errors.DataError):
        region.read_suspension(file)
    os.close(file)
