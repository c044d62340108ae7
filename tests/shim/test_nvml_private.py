"""The private export table of nvidia-smi: the driver's copied, with the container's processes."""

import os

import pytest
import rights
from machine_room import MINUTE_NS, holder
from shim_room import GIB, MIB, busy

TABLE = """
nvml, own = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libnvidia-ml-origin.so.1")
UUID = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
def table(library, uuid=UUID):
    found = P()
    result = library.nvmlInternalGetExportTable(byref(found), uuid)
    if result:
        return result
    size = U64.from_address(found.value).value
    return list((U64 * (size // 8)).from_address(found.value))
def prepare():
    device = P()
    check(nvml.nvmlInit_v2())
    check(nvml.nvmlDeviceGetHandleByIndex_v2(UINT(0), byref(device)))
    return device
def listed(device, slot, room):
    entries, count = ctypes.create_string_buffer(4128 * room), UINT(room)
    result = ctypes.CFUNCTYPE(INT, P, P, P)(table(nvml)[slot])(device, byref(count), entries)
    rows = [entries.raw[4128 * i:4128 * i + 4128] for i in range(count.value)]
    return result, [[int.from_bytes(row[:4], "little"), int.from_bytes(row[8:16], "little"),
                     row[32:].split(b"\\0")[0].decode()] for row in rows]
def loads(device, room):
    records, count, kind = (U64 * (61 * room))(), UINT(room), INT()
    function = ctypes.CFUNCTYPE(INT, P, U64, P, P, P)(table(nvml)[145])
    result = function(device, 0, byref(kind), byref(count), records)
    parts = [[records[61 * i + 2] & 0xffffffff, records[61 * i + 1]] for i in range(count.value)]
    return result, count.value, parts
"""


def test_copy_differs_from_the_drivers_table_in_four_functions(room):
    was, seen, again, after = room.ask(
        TABLE + "answer([table(own), table(nvml), table(nvml), table(own)])"
    )
    assert was == after
    assert seen == again
    assert [i for i, (a, b) in enumerate(zip(was, seen, strict=True)) if a != b] == [
        145,
        213,
        214,
        215,
    ]


def test_table_that_the_driver_does_not_have_is_refused(room):
    assert room.ask(TABLE + "answer(table(nvml, bytes(16)))") == 2


@pytest.mark.slow
def test_lists_have_our_processes_by_name_and_no_neighbour(room, machine):
    with holder(machine, 0, GIB), room.start("context(); answer(0); sys.stdin.readline()") as one:
        one.stdout.readline()
        mine, found = room.ask(
            TABLE
            + """
context(); check(alloc(2 * MIB)[0])
device = prepare()
answer([os.getpid(), [listed(device, slot, 500) for slot in (213, 214, 215)]])
"""
        )
        python = os.fspath(one.args[0])
        expected = [[one.pid, room.reserve, python], [mine, room.reserve + 2 * MIB, python]]
        assert [result for result, _ in found] == [0, 0, 0]
        assert sorted(found[0][1]) == sorted(expected)
        assert found[1:] == [[0, []]] * 2
        one.communicate("\n", timeout=30)


def test_list_longer_than_its_room_is_cut_and_never_an_error(room):
    with room.start("context(); answer(0); sys.stdin.readline()") as one:
        one.stdout.readline()
        results = room.ask(
            TABLE
            + "context(); device = prepare()\n"
            + "answer([[listed(device, 213, room)[0], len(listed(device, 213, room)[1])]"
            + " for room in (0, 1, 2)])"
        )
        assert results == [[0, 0], [0, 1], [0, 2]]
        one.communicate("\n", timeout=30)


@pytest.mark.slow
@rights.needs_first_pid_namespace
@pytest.mark.parametrize("vcore", [100, 1])
def test_records_keep_our_load_and_the_instants_of_others_without_it(make_room, machine, vcore):
    room = make_room(machine, vcore=vcore)
    with holder(machine, 0, MIB, MINUTE_NS) as neighbour, busy(room) as pid:
        result, count, parts = room.ask(TABLE + "answer(loads(prepare(), 100))")
    assert (result, count) == (0, 100)
    assert {each for each, _ in parts} <= {0, pid}
    assert neighbour.pid not in {each for each, _ in parts}
    assert all(load == 0 for each, load in parts if each == 0)
    mean = sum(load for _, load in parts) / count
    assert mean == 100 if vcore == 1 else 0 < mean < 100
