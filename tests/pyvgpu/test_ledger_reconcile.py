"""Memory that processes hold beyond their charges, and the matching of processes and slots."""

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import pyvgpu.region.shared_memory
from pyvgpu import nvml, region
from pyvgpu._region import ffi
from pyvgpu.machine import ledger_reconcile, process_identity

MIB = 1 << 20


def slot(number, *charged, pid=0, namespace=0, opened=None):
    return region.SlotUsage(
        number,
        pid or 100 + number,
        namespace,
        "train",
        0,
        0,
        charged,
        opened or (0,) * len(charged),
    )


@pytest.mark.parametrize(
    ("before", "held", "after", "excess"),
    [
        # slots before, bytes by device and pid, slots after: excess by device and slot
        ([slot(0, 500)], [{7: 500}], [slot(0, 500)], {}),
        ([slot(0, 500)], [{7: 800}], [slot(0, 500)], {(0, 0): 300}),
        ([slot(0, 500)], [{7: 300}], [slot(0, 500)], {}),
        # charged and allocated, or freed and refunded, while NVML was asked
        ([slot(0, 500)], [{7: 900}], [slot(0, 900)], {}),
        ([slot(0, 900)], [{7: 900}], [slot(0, 500)], {}),
        # a process of another run, or an unknown one
        ([slot(0, 500)], [{9: 9000, 7: 500}], [slot(0, 500)], {}),
        # two devices and two processes
        (
            [slot(0, 10, 20), slot(1, 30, 40)],
            [{7: 10, 8: 31}, {7: 22, 8: 40}],
            [slot(0, 10, 20), slot(1, 30, 40)],
            {(0, 1): 1, (1, 0): 2},
        ),
        # it took its slot after the first poll, or left it before the last
        ([], [{7: 500}], [slot(0, 400)], {(0, 0): 100}),
        ([slot(0, 400)], [{7: 500}], [], {(0, 0): 100}),
        # it imported memory, which NVML counts for both processes, or only for the owner
        ([slot(0, 400, opened=(100,))], [{7: 500}], [], {}),
        ([slot(0, 400, opened=(100,))], [{7: 400}], [], {}),
        ([slot(0, 400, opened=(100,))], [{7: 503}], [slot(0, 400)], {(0, 0): 3}),
        ([slot(0, 400)], [{7: 503}], [slot(0, 400, opened=(100,))], {(0, 0): 3}),
    ],
)
def test_excess_is_memory_that_no_charge_covers(before, held, after, excess):
    assert ledger_reconcile.find_excess(before, tuple(held), after, {7: 0, 8: 1}) == excess


def test_only_excess_seen_twice_counts():
    assert ledger_reconcile.confirm({}, {(0, 0): 5}) == {}
    assert ledger_reconcile.confirm({(0, 0): 5}, {}) == {}
    assert ledger_reconcile.confirm({(0, 0): 5, (1, 0): 9}, {(0, 0): 7, (1, 0): 3}) == {
        (0, 0): 5,
        (1, 0): 3,
    }


class Scene:
    """A region and a driver with programmable answers."""

    def __init__(self):
        self.slots, self.held, self.published = (), ({},), []
        self.ended, self.lacking = set(), {}
        self.reconciler = ledger_reconcile.Reconciler(
            ledger_reconcile.ReconcileSources(
                charges=lambda: self.slots,
                measure=lambda: self.held,
                slot_of=lambda pid, slots: {7: 0}.get(pid),
                has_ended=lambda process: process.slot in self.ended,
                publish=self.published.append,
                lacking=lambda _: self.lacking,
            )
        )


def test_an_excess_is_published_once_and_withdrawn_once():
    scene = Scene()
    scene.slots, scene.held = (slot(0, 500),), ({7: 800},)
    scene.reconciler.poll()
    assert scene.published == []
    for _ in range(3):
        scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}]
    scene.held = ({7: 500},)
    for _ in range(3):
        scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}, {}]


def test_memory_left_to_children_is_kept_as_long_as_the_slot():
    """NVML no longer lists the process, but its memory is held; none of it changes."""
    scene = Scene()
    scene.slots, scene.held = (slot(0, 500), slot(1, 9)), ({7: 800},)
    for _ in range(2):
        scene.reconciler.poll()
    scene.slots, scene.held = (slot(0, 700), slot(1, 9)), ({},)  # it allocated more before it died
    scene.ended = {0}
    for _ in range(3):
        scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}]
    scene.slots = (slot(1, 9),)
    scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}, {}]


def test_memory_of_a_dead_process_is_kept_on_devices_where_nvml_omits_it():
    scene = Scene()
    scene.slots, scene.held = (slot(0, 500, 90),), ({7: 800}, {7: 100})
    for _ in range(2):
        scene.reconciler.poll()
    scene.ended, scene.held = {0}, ({}, {7: 290})
    for _ in range(2):
        scene.reconciler.poll()
    assert scene.published[-1] == {(0, 0): 300, (1, 0): 200}


def test_excess_of_a_live_process_ends_when_nvml_omits_it():
    """Its other contexts are still charged, there and elsewhere."""
    scene = Scene()
    scene.slots, scene.held = (slot(0, 500, 90),), ({7: 800}, {7: 90})
    for _ in range(2):
        scene.reconciler.poll()
    scene.held = ({}, {7: 90})
    scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}, {}]


def test_excess_ends_with_its_context():
    scene = Scene()
    scene.slots, scene.held = (slot(0, 500),), ({7: 800},)
    for _ in range(2):
        scene.reconciler.poll()
    scene.slots, scene.held = (slot(0, 0),), ({},)
    scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}, {}]


def test_excess_ends_when_no_slot_is_left():
    scene = Scene()
    scene.slots, scene.held = (slot(0, 500),), ({7: 800},)
    scene.reconciler.poll()
    scene.reconciler.poll()
    scene.slots, scene.held = (), ({},)
    scene.reconciler.poll()
    assert scene.published == [{(0, 0): 300}, {}]


def test_other_lacking_memory_counts_without_a_slot():
    """A process can give up the lock of its slot."""
    scene = Scene()
    scene.lacking = {(0, 9): 800}
    for _ in range(3):
        scene.reconciler.poll()
    assert scene.published == [{(0, 9): 800}]


@pytest.mark.parametrize(
    ("links", "opened"),
    [
        # (slot, kind, device, key, bytes): bytes by slot and device
        ([], {}),
        ([(0, "EXPORT", 1, 5, 100)], {}),
        ([(0, "EXPORT", 1, 5, 100), (1, "IMPORT", 0, 5, 0)], {1: (0, 100)}),
        # opened twice, and by two
        (
            [(0, "EXPORT", 0, 5, 100), *[(user, "IMPORT", 0, 5, 0) for user in (1, 1, 2)]],
            {1: (100, 0), 2: (100, 0)},
        ),
        # of two owners
        (
            [(0, "EXPORT", 0, 5, 100), (2, "EXPORT", 0, 6, 7)]
            + [(1, "IMPORT", 0, key, 0) for key in (5, 6)],
            {1: (107, 0)},
        ),
        # its own, or without an owner in this region, or being written
        ([(1, "EXPORT", 0, 5, 100), (1, "IMPORT", 0, 5, 0)], {}),
        ([(1, "IMPORT", 0, 5, 0)], {}),
        ([(1, None, 0, 0, 3), (2, "IMPORT", 0, 0, 0)], {}),
        # no more of a slot than its charge of 600
        ([(0, "EXPORT", 0, 5, 1 << 40), (1, "IMPORT", 0, 5, 0)], {1: (600, 0)}),
        (
            [(owner, "EXPORT", 0, key, 500) for owner, key in ((0, 5), (0, 6), (2, 7))]
            + [(1, "IMPORT", 0, key, 0) for key in (5, 6, 7)],
            {1: (1100, 0)},
        ),
        # on a device that is not requested
        ([(0, "EXPORT", 2, 5, 100), (1, "IMPORT", 0, 5, 0)], {}),
    ],
)  # fmt: skip
def test_shared_memory_of_others_is_counted_per_importer(links, opened):
    table = [
        pyvgpu.region.shared_memory.SharedEntry(
            key << ffi.integer_const("LINK_HASH_SHIFT")
            | (ffi.integer_const(f"LINK_{kind}") if kind else 0)
            | device << ffi.integer_const("LINK_DEVICE_SHIFT")
            | owner + 1,
            size,
        )
        for owner, kind, device, key, size in links
    ]
    assert pyvgpu.region.shared_memory.opened(table, 2, lambda slot, device: 600) == opened


def test_a_process_in_several_lists_of_nvml_is_counted_once():
    listed = [(7, 500), (8, None), (9, 3), (7, 500), (9, 4), (8, 1), (10, None)]
    assert nvml.largest_by_pid(listed) == {7: 500, 9: 4, 8: 1}


# Maps a file, takes a name that is not UTF-8 and maps a file whose name has line separators.
MAPPER = """
import ctypes, mmap, os, sys
def mapped(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
odd = os.path.join(os.path.dirname(sys.argv[1].encode()), b"a\\x0cb\\x1c\\xe2\\x80\\xa8 c\\xff")
with open(odd, "wb") as file:
    file.write(bytes(4096))
kept = [mapped(odd), mapped(sys.argv[1])]
ctypes.CDLL(None).prctl(15, b"train) \\xe5\\x9b", 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def usage(tmp_path):
    """Return a usage file, open, and a process that has it mapped."""
    path = tmp_path / "usage"
    path.write_bytes(bytes(4096))
    with (
        path.open("rb") as file,
        subprocess.Popen(
            [sys.executable, "-c", MAPPER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
    ):
        process.stdout.readline()
        yield file.fileno(), process.pid
        process.stdin.close()


def test_a_process_is_recognized_by_its_mapped_file(usage):
    file, pid = usage
    relatives = process_identity.SlotProcesses(file)
    slots = [slot(3, 0, pid=pid), slot(4, 0, pid=os.getpid())]
    assert relatives.slot_of(pid, slots) == 3
    assert relatives.slot_of(os.getpid(), slots) is None  # it has not mapped the file
    assert relatives.slot_of(2**22 - 1, slots) is None


def test_a_process_is_recognized_after_the_file_was_removed(usage, tmp_path):
    file, pid = usage
    (tmp_path / "usage").unlink()
    assert process_identity.SlotProcesses(file).slot_of(pid, [slot(3, 0, pid=pid)]) == 3


def test_the_namespace_distinguishes_equal_pids(usage):
    file, pid = usage
    here = Path("/proc/self/ns/pid").stat().st_ino
    slots = [slot(3, 0, pid=pid, namespace=here + 1), slot(4, 0, pid=pid, namespace=here)]
    assert process_identity.SlotProcesses(file).slot_of(pid, slots) == 4


def test_a_process_has_ended_when_the_file_is_unmapped(usage):
    file, pid = usage
    here = Path("/proc/self/ns/pid").stat().st_ino
    relatives = process_identity.SlotProcesses(file)
    claims = [slot(3, 0, pid=pid, namespace=namespace) for namespace in (here, 0, here + 1)]
    assert [relatives.has_ended(claim) for claim in claims[:2]] == [False, False]
    assert process_identity.SlotProcesses(file).has_ended(
        claims[2]
    )  # its pid is of another namespace
    assert process_identity.SlotProcesses(file).has_ended(
        slot(3, 0, pid=os.getpid(), namespace=here)
    )  # it called exec
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert [relatives.has_ended(claim) for claim in claims[:1]] == [True]
    assert process_identity.SlotProcesses(file).has_ended(claims[1])


def test_ambiguous_processes_have_no_slot(usage):
    file, pid = usage
    assert (
        process_identity.SlotProcesses(file).slot_of(
            pid, [slot(3, 0, pid=pid), slot(4, 0, pid=pid)]
        )
        is None
    )


def test_published_bytes_have_the_layout_that_the_shim_reads(tmp_path):
    size = ffi.sizeof("struct quota_file")
    path = tmp_path / "quota"
    path.write_bytes(struct.pack("<8sII", b"pyvgpuQ1", 2, size).ljust(size, b"\0"))
    with path.open("r+b") as file:
        region.publish_extra(file.fileno(), {(0, 5): 7 * MIB, (0, 9): MIB, (2, 5): 3})
        content = ffi.from_buffer("struct quota_file *", path.read_bytes())
        assert content.extra[0][5] == 7 * MIB
        assert content.extra[2][5] == 3
        assert list(content.extra_total)[:3] == [8 * MIB, 0, 3]
        region.publish_extra(file.fileno(), {})
    content = ffi.from_buffer("struct quota_file *", path.read_bytes())
    assert not any(content.extra_total)
    assert content.extra[0][5] == 0
