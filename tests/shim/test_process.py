"""Processes: fork, exec, threads, death; the memory that each leaves for the others."""

import json
import random
import signal
import time

import pytest
from shim_room import GIB, MIB, ask_bare
from waiting import wait_until

from pyvgpu.simulation import simulator

NVML_USED = """
import pynvml
pynvml.nvmlInit()
answer(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
"""


def test_shim_starts_no_thread_and_keeps_no_descriptor(room):
    source = """
context(); alloc(4096)
import pynvml
pynvml.nvmlInit()
answer([len(os.listdir("/proc/self/task")),
        [p for p in (os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                     if os.path.exists(f"/proc/self/fd/{n}")) if "region" in p]])
"""
    assert room.ask(source) == [1, []]


def test_forked_child_is_answered_as_by_the_driver(room, machine):
    source = """
context()
_, pointer = alloc(64 * MIB)
sys.stdout.flush()
child = os.fork()
if child == 0:
    answer([cuda.cuInit(0), alloc(4096)[0], free(pointer), cuda.cuCtxDestroy_v2(None),
            cuda.cuMemGetInfo_v2(byref(SIZE()), byref(SIZE()))])
    os._exit(0)
os.waitpid(child, 0)
check(free(pointer))
"""
    assert room.ask(source) == ask_bare(machine, source) == [3, 3, 3, 3, 3]


def test_child_forked_before_cuInit_has_its_own_slot(room):
    answer = room.ask(
        """
child = os.fork()
context()
check(alloc((1 if child else 2) * 100 * MIB)[0])
if child == 0:
    time.sleep(60)
while available() != 2 * GIB - 2 * int(sys.argv[1]) - 300 * MIB - 4 * MIB * 0:
    time.sleep(0.01)
os.kill(child, 9)
os.waitpid(child, 0)
end = time.monotonic() + 5
while available() != 2 * GIB - int(sys.argv[1]) - 100 * MIB and time.monotonic() < end:
    time.sleep(0.01)
answer(available())
""",
        room.reserve,
    )
    assert answer == 2 * GIB - room.reserve - 100 * MIB


def test_nvml_goes_on_in_a_forked_child(room):
    answer = room.ask("""
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
child = os.fork()
if child == 0:
    answer(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert answer == 2 * GIB


def test_exec_gives_everything_back(room):
    answer = room.ask("""
if len(sys.argv) == 2:
    answer(json.loads(sys.argv[1]) + [available() if context() else 0])
else:
    context()
    check(alloc(1 * GIB)[0])
    held = available()
    source = open("/proc/self/cmdline").read().split("\\0")[3]
    os.execv(sys.executable, [sys.executable, "-c", source, json.dumps([held])])
""")
    assert answer == [GIB - room.reserve, 2 * GIB - room.reserve]


@pytest.mark.slow
def test_killed_process_gives_everything_back_within_a_second(room):
    for _ in range(10):
        with room.start("""
context()
check(alloc(available())[0])
answer("full")
sys.stdin.readline()
""") as holder:
            assert holder.stdout.readline() == '"full"\n'
            holder.kill()
        taken = room.ask(
            """
context()
end = time.monotonic() + 1
while True:
    late = time.monotonic() > end
    result = alloc(2 * GIB - int(sys.argv[1]))[0]
    if result == 0 or late:
        break
    time.sleep(0.005)
answer(result)
""",
            room.reserve,
        )
        assert taken == 0


GRAB = """
import random, signal
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
refused = 0
current = P()
check(cuda.cuInit(0))
while cuda.cuDevicePrimaryCtxRetain(byref(current), 0) == 2:
    refused += 1
    time.sleep(0.001)  # the others have taken the memory that a context needs
check(cuda.cuCtxSetCurrent(current))
random.seed(int(sys.argv[1]))
held = []
answer("in")
while not stop:
    if held and random.random() < 0.45:
        check(free(held.pop(random.randrange(len(held)))))
    else:
        result, pointer = alloc(random.choice([1, 4096, 300_000, 3 * MIB, GIB, 7 * GIB]))
        if result == 0:
            held.append(pointer)
        elif result == 2:
            refused += 1
        else:
            raise SystemExit(result)
answer(refused)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_sixteen_processes_fill_a_device_and_the_driver_never_has_to_refuse(make_room, machine):
    """The quota is the whole device: the driver would fail if the ledger ever exceeded it.

    Then a program would have met more refusals than its slot has counted.
    """
    room = make_room(machine, vmemory=machine.devices[0].memory_bytes)
    programs = [room.start(GRAB, n) for n in range(16)]
    try:
        for program in programs:
            assert program.stdout.readline() == '"in"\n'
        wait_until(lambda: room.usage().refused[0] > 10_000)
        for program in programs:
            program.terminate()
        met = {program.pid: json.loads(program.stdout.readline()) for program in programs}
        usage = room.usage()
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    assert {slot.pid: slot.refused for slot in usage.slots} == met
    assert sum(met.values()) == usage.refused[0] > 100


@pytest.mark.slow
def test_survivors_of_many_deaths_go_on_and_nothing_is_lost(make_room, machine):
    quota = 16 * machine.devices[0].context_bytes + 20 * GIB
    room = make_room(machine, vmemory=quota)
    programs = [room.start(GRAB, n) for n in range(16)]
    choice = random.Random(1)
    try:
        for death in range(40):
            index = choice.randrange(16)
            time.sleep(choice.random() / 10)
            programs[index].kill()
            programs[index].communicate()
            assert programs[index].returncode == -signal.SIGKILL  # it had not failed before
            programs[index] = room.start(GRAB, 100 + death)
        assert [program.poll() for program in programs] == [None] * 16
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    whole = room.ask(
        """
context()
end, late = time.monotonic() + 1, False
while alloc(int(sys.argv[1]))[0] and not late:
    time.sleep(0.01)
    late = time.monotonic() > end
answer(int(sys.argv[1]) + available())
""",
        quota - room.reserve,
    )
    assert whole == quota - room.reserve


def test_device_never_gives_more_than_the_ledger_says(make_room, tmp_path):
    law = simulator.Law(small_blocks=True)
    machine = simulator.open_machine("h100", root=tmp_path / "blocks", law=law)
    room = make_room(machine, vmemory=2 * GIB)
    with room.start("""
context()
for size in (1, 600, 70_000, 1_000_000, 1_100_000, 5_000_000, 123_456_789):
    check(alloc(size)[0])
answer(2 * GIB - available())
sys.stdin.readline()
""") as program:
        ledger = json.loads(program.stdout.readline())
        device = ask_bare(machine, NVML_USED)
        program.kill()
    blocks = 4 * 2 * MIB  # of small allocations of four sizes
    assert ledger == room.reserve + blocks + 2 * MIB + 6 * MIB + 118 * MIB
    assert device >= ledger  # v1 counts what the driver reserves for itself
