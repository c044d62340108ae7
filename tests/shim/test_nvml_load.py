"""NVML utilization: of this container's processes alone, relative to its vcore."""

import subprocess
import sys

import pytest
import rights
from machine_room import MINUTE_NS, NVML_PRELUDE, holder
from shim_room import GIB, MIB, ask_bare, busy

NOT_FOUND = 6

pytestmark = rights.needs_first_pid_namespace

NVML = f"""{NVML_PRELUDE}
N.nvmlInit()
device = N.nvmlDeviceGetHandleByIndex(0)
def loads():
    '''Every answer about the load of the device; the video engines are idle here.'''
    rates = N.nvmlDeviceGetUtilizationRates(device)
    pstates = N.nvmlDeviceGetDynamicPstatesInfo(device).utilization[0].percentage
    _, samples = N.nvmlDeviceGetSamples(device, N.NVML_GPU_UTILIZATION_SAMPLES, 0)
    sampled = max(each.sampleValue.uiVal for each in samples)
    return dict(rates=rates.gpu, pstates=pstates, samples=sampled)
def processes():
    '''By pid, as both forms of the question have it.'''
    try:
        old = {{s.pid: s.smUtil for s in N.nvmlDeviceGetProcessUtilization(device, 0)}}
    except N.NVMLError as error:
        old = error.value
    asked = N.c_nvmlProcessesUtilizationInfo_v1_t(
        version=N.ProcessesUtilizationInfo_v1, processSamplesCount=16)
    rows = (N.c_nvmlProcessUtilizationInfo_v1_t * 16)()
    asked.procUtilArray = rows
    result = N.nvmlLib.nvmlDeviceGetProcessesUtilizationInfo(device, ctypes.byref(asked))
    new = result or {{s.pid: s.smUtil for s in rows[:asked.processSamplesCount]}}
    return [old, new]
"""


@pytest.fixture(name="neighbour")
def fixture_neighbour(machine):
    with holder(machine, 0, MIB, MINUTE_NS) as each:
        yield each


def test_neighbours_load_is_not_ours(room, machine, neighbour):
    assert min(ask_bare(machine, NVML + "answer(loads())").values()) > 0
    assert set(room.ask(NVML + "answer(loads())").values()) == {0}
    assert room.ask(NVML + "answer(processes())") == [NOT_FOUND, NOT_FOUND]


@pytest.mark.usefixtures("neighbour")
def test_device_load_counts_the_containers_processes_only(room):
    with busy(room) as pid:
        seen, by_process = room.ask(NVML + "answer([loads(), processes()])")
    assert all(0 < load < 100 for load in seen.values())
    for each in by_process:
        assert list(each) == [str(pid)]
        assert 0 < each[str(pid)] < 100


@pytest.mark.slow
@pytest.mark.usefixtures("neighbour")
def test_load_is_a_part_of_the_vcore_and_at_most_all_of_it(make_room, machine):
    room = make_room(machine, vcore=1)
    with busy(room) as pid:
        seen, by_process = room.ask(NVML + "answer([loads(), processes()])")
        assert set(seen.values()) == {100}
        assert by_process == [{str(pid): 100}] * 2
        room.vcore = 100
        room.set_vmemory(3 * GIB)
        assert 0 < room.ask(NVML + "answer(loads())")["rates"] < 100


def test_accounting_knows_our_processes_alone(room, machine, neighbour):
    question = """
def stats(pid):
    try:
        found = N.nvmlDeviceGetAccountingStats(device, pid)
        return [found.maxMemoryUsage, found.gpuUtilization > 0]
    except N.NVMLError as error:
        return error.value
answer([N.nvmlDeviceGetAccountingPids(device), [stats(int(pid)) for pid in sys.argv[1:]]])
"""
    with busy(room) as pid:
        context = machine.devices[0].context_bytes
        pids, stats = room.ask(NVML + question, pid, neighbour.pid)
        assert pids == [pid]
        assert stats == [[context, True], NOT_FOUND]
        pids, stats = ask_bare(machine, NVML + question, pid, neighbour.pid)
        assert sorted(pids) == sorted([pid, neighbour.pid])


@rights.needs_pid_namespace
def test_no_load_is_shown_if_pids_cannot_be_translated(room):
    with busy(room):
        done = subprocess.run(
            [
                *(*rights.PID_NAMESPACE, sys.executable, "-c"),
                NVML + "answer([loads(), processes()])",
            ],
            env=room.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert done.stdout == '[{"rates": 0, "pstates": 0, "samples": 0}, [6, 6]]\n'
