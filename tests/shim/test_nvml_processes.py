"""NVML process lists: the container's processes, with its own pids and the ledger's bytes."""

import contextlib
import json
import subprocess
import sys

import rights
from machine_room import holder
from shim_room import GIB, MIB, PRELUDE, ask_bare

from pyvgpu.simulation import simulator

INSUFFICIENT_SIZE, VERSION_MISMATCH = 7, 25

HOLD = """
context()
check(alloc(int(sys.argv[1]))[0])
answer(os.getpid())
sys.stdin.readline()
"""

NVML = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
check(nvml.nvmlInit_v2())
device = P()
check(nvml.nvmlDeviceGetHandleByIndex_v2(UINT(0), byref(device)))
def call(name, *arguments):
    return getattr(nvml, name)(device, *arguments)
def rows(name, words, room=16):
    array, count = (U64 * (words * room))(), UINT(room)
    result = call(name, byref(count), array)
    return result, count.value, sorted(
        [array[i * words] & 0xffffffff, array[i * words + 1]] for i in range(count.value))
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
class Details(ctypes.Structure):
    _fields_ = [("version", UINT), ("mode", UINT), ("count", UINT), ("array", P)]
def details(mode, room=16, version=0x01000018):
    array = (U64 * (4 * room))()
    asked = Details(version, mode, room, ctypes.addressof(array))
    result = call("nvmlDeviceGetRunningProcessDetailList", byref(asked))
    return result, asked.count, sorted(
        [array[i * 4] & 0xffffffff, array[i * 4 + 1]] for i in range(min(asked.count, room)))
"""

ALL_LISTS = """
answer([rows(COMPUTE, 2), rows(COMPUTE + "_v2", 3), rows(COMPUTE + "_v3", 3),
        details(0), details(3)])
"""


@contextlib.contextmanager
def held(room, *sizes):
    """Let a process hold each of the sizes; their pids and bytes, as a list has them."""
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(room.start(HOLD, size)) for size in sizes]
        pids = [json.loads(each.stdout.readline()) for each in programs]
        yield [[pid, room.reserve + size] for pid, size in zip(pids, sizes, strict=True)]
        for each in programs:
            each.communicate("\n", timeout=30)


def test_lists_of_all_versions_have_our_processes_and_no_neighbour(room, machine):
    with holder(machine, 0, GIB) as neighbour, held(room, 64 * MIB, 128 * MIB) as ours:
        expected = [0, 2, sorted(ours)]
        assert room.ask(NVML + ALL_LISTS) == [expected] * 5
        all_processes = ask_bare(machine, NVML + ALL_LISTS)[0][2]
        assert neighbour.pid in {pid for pid, _ in all_processes}
        assert len(all_processes) == 3


def test_other_container_is_a_neighbour_too(make_room, machine):
    one, two = make_room(machine), make_room(machine)
    with held(one, 2 * MIB) as ours, held(two, 2 * MIB) as theirs:
        assert one.ask(NVML + "answer(rows(COMPUTE, 2))") == [0, 1, ours]
        assert two.ask(NVML + "answer(rows(COMPUTE, 2))") == [0, 1, theirs]


def test_lists_that_ask_for_room_get_as_much_as_the_driver_wants(room):
    question = """
def sized(name, words, room):
    array, count = (U64 * 64)(), UINT(room)
    return [call(name, byref(count), array if room else None), count.value]
answer([[sized(COMPUTE + version, words, room) for room in (0, 1, 2, 3)]
        for version, words in (("", 2), ("_v2", 3), ("_v3", 3))] +
       [[details(0, room)[:2] for room in (0, 1, 2, 3)]])
"""
    with held(room, MIB, MIB):
        sizes = [[INSUFFICIENT_SIZE, 2], [INSUFFICIENT_SIZE, 2], [0, 2], [0, 2]]
        assert room.ask(NVML + question) == [sizes] * 4


def test_graphics_and_mps_lists_are_empty_and_not_refused(room):
    question = """
answer([rows(f"nvmlDeviceGet{kind}RunningProcesses{version}", 3)
        for kind in ("Graphics", "MPSCompute") for version in ("", "_v2", "_v3")] +
       [details(1), details(2)])
"""
    with held(room, MIB):
        assert room.ask(NVML + question) == [[0, 0, []]] * 8


def test_detail_list_of_a_version_unknown_here_is_refused(room):
    with held(room, MIB):
        assert room.ask(NVML + "answer(details(0, 16, 0x02000020)[0])") == VERSION_MISMATCH


def test_killed_process_is_no_process(room):
    with held(room, MIB), room.start(HOLD, MIB) as victim:
        killed = json.loads(victim.stdout.readline())
        victim.kill()
        victim.wait()
        pids = room.ask(
            NVML
            + """
for _ in range(200):
    pids = [pid for pid, _ in rows(COMPUTE, 2)[2]]
    if len(pids) == 1:
        break
    time.sleep(0.01)
answer(pids)
"""
        )
        assert len(pids) == 1
        assert killed not in pids


def test_process_without_memory_on_the_device_is_not_listed(make_room, tmp_path):
    machine = simulator.open_machine("h100:2", root=tmp_path / "two")
    room = make_room(machine, ordinals=(0, 1))
    with held(room, MIB):
        second = """
check(nvml.nvmlDeviceGetHandleByIndex_v2(UINT(1), byref(device)))
answer(rows(COMPUTE, 2))
"""
        assert room.ask(NVML + second) == [0, 0, []]


def test_process_that_asks_is_listed_with_what_it_holds(room):
    pid, (_, count, found) = room.ask(
        "context(); check(alloc(32 * MIB)[0])\n" + NVML + "answer([os.getpid(), rows(COMPUTE, 2)])"
    )
    assert (count, found) == (1, [[pid, room.reserve + 32 * MIB]])


@rights.needs_pid_namespace
def test_in_a_pid_namespace_pids_are_those_that_its_processes_have(room, machine):
    script = f"""{PRELUDE}{NVML}
context()
check(alloc(2 * MIB)[0])
answer([os.getpid(), rows(COMPUTE, 2)[2]])
"""
    with holder(machine, 0, GIB):
        done = subprocess.run(
            [*rights.PID_NAMESPACE, sys.executable, "-c", script],
            env=room.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert json.loads(done.stdout) == [1, [[1, room.reserve + 2 * MIB]]]
