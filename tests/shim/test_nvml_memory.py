"""NVML memory info: consistent at every instant while allocations and the quota change."""

import json

import pytest
from shim_room import GIB, MIB

NVML = """
import pynvml as N
N.nvmlInit()
device = N.nvmlDeviceGetHandleByIndex(0)
def seen():
    '''Total, used and free, as each question has them.'''
    one = N.nvmlDeviceGetMemoryInfo(device)
    two = N.nvmlDeviceGetMemoryInfo(device, version=N.nvmlMemory_v2)
    window = N.nvmlDeviceGetBAR1MemoryInfo(device)
    return [[one.total, one.used, one.free], [two.total, two.used + two.reserved, two.free],
            [window.bar1Total, window.bar1Used, window.bar1Free]]
"""

CHURN = """
context()
answer("in")
while not os.path.exists(sys.argv[1]):
    result, pointer = alloc(96 * MIB)
    if result == 0:
        free(pointer)
"""


@pytest.mark.slow
def test_figures_add_up_while_processes_allocate_and_the_quota_changes(room, tmp_path):
    stop = tmp_path / "stop"
    reader = (
        NVML
        + """
answer("in")
totals, wrong = set(), []
while not os.path.exists(sys.argv[1]):
    for total, used, free in seen():
        totals.add(total)
        if not (0 <= free <= total and used + free == total):
            wrong.append([total, used, free])
answer([sorted(totals), wrong])
"""
    )
    quotas = [3 * GIB, 2 * GIB]
    with (
        room.start(CHURN, stop) as one,
        room.start(CHURN, stop) as two,
        room.start(reader, stop) as watching,
    ):
        for each in (one, two, watching):
            assert each.stdout.readline() == '"in"\n'
        for turn in range(400):
            room.set_vmemory(quotas[turn % 2])
        stop.touch()
        totals, wrong = json.loads(watching.communicate(timeout=60)[0])
        for each in (one, two):
            each.communicate(timeout=60)
    assert wrong == []
    assert set(totals) <= set(quotas)


def test_quota_below_usage_shows_nothing_free(room):
    with room.start("context(); check(alloc(GIB)[0]); answer(0); sys.stdin.readline()") as holder:
        holder.stdout.readline()
        room.set_vmemory(GIB)
        assert room.ask(NVML + "answer(seen())") == [[GIB, GIB, 0]] * 2 + [[GIB, 0, GIB]]
        holder.communicate("\n", timeout=30)


def test_unknown_structure_version_is_refused(room):
    """A newer driver might know it, and would report the whole device's memory."""
    code = """
try:
    N.nvmlDeviceGetMemoryInfo(device, version=0x03000028)
    answer(0)
except N.NVMLError as error:
    answer(error.value)
"""
    assert room.ask(NVML + code) == 25


def test_bar1_window_is_no_larger_than_the_quota(room, machine):
    assert machine.devices[0].memory_bytes > 2 * GIB
    (*_, window) = room.ask(NVML + "answer(seen())")
    assert window == [2048 * MIB, 0, 2048 * MIB]
