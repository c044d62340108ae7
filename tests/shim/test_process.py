"""Processes: fork, exec, threads, death; what each leaves and what the others may then have."""

import json
import random
import signal
import threading
import time

from shim_room import GIB, MIB, ask_bare

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
    source = open(f"/proc/self/cmdline").read().split("\\0")[2]
    os.execv(sys.executable, [sys.executable, "-c", source, json.dumps([held])])
""")
    assert answer == [GIB - room.reserve, 2 * GIB - room.reserve]


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
    result = alloc(2 * GIB - int(sys.argv[1]))[0]
    if result == 0 or time.monotonic() > end:
        break
    time.sleep(0.005)
answer(result)
""",
            room.reserve,
        )
        assert taken == 0


GRAB = """
import random
context()
random.seed(int(sys.argv[1]))
held = []
answer("in")
while True:
    if held and random.random() < 0.45:
        check(free(held.pop(random.randrange(len(held)))))
    else:
        result, pointer = alloc(random.choice([1, 4096, 300_000, 3 * MIB, 40 * MIB, 200 * MIB]))
        if result == 0:
            held.append(pointer)
        elif result != 2:
            raise SystemExit(result)
"""


def test_sixteen_processes_that_die_are_never_over_the_quota(make_room, machine):
    """The simulated device itself is asked, by its own NVML, what is taken of it."""
    quota = 16 * machine.devices[0].context_bytes + 1 * GIB
    room = make_room(machine, vmemory=quota)
    seen = []
    stop = threading.Event()

    def watch():
        import machine_room

        answers = machine_room.ask(
            machine,
            """
N.nvmlInit()
handle = N.nvmlDeviceGetHandleByIndex(0)
seen, end = [], time.monotonic() + 6
while time.monotonic() < end:
    seen.append(N.nvmlDeviceGetMemoryInfo(handle, version=N.nvmlMemory_v2).used)
answer([max(seen), len(seen)])
""",
        )
        seen.extend(answers)
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    programs = [room.start(GRAB, n) for n in range(16)]
    choice = random.Random(1)
    deaths = 0
    try:
        for program in programs:
            assert program.stdout.readline() == '"in"\n'
        while not stop.is_set():
            index = choice.randrange(16)
            programs[index].send_signal(signal.SIGKILL)
            assert programs[index].wait() == -signal.SIGKILL
            programs[index].stdout.close()
            programs[index].stdin.close()
            deaths += 1
            programs[index] = room.start(GRAB, 100 + deaths)
            assert programs[index].stdout.readline() == '"in"\n'
    finally:
        for program in programs:
            program.kill()
            program.communicate()
        watcher.join()
    most, samples = seen
    assert deaths > 10
    assert samples > 100
    assert 0 < most <= quota
    end = time.monotonic() + 1
    whole = room.ask(
        """
context()
end = time.monotonic() + float(sys.argv[1])
while available() != int(sys.argv[2]) and time.monotonic() < end:
    time.sleep(0.01)
answer(available())
""",
        max(end - time.monotonic(), 0.5),
        quota - room.reserve,
    )
    assert whole == quota - room.reserve


def test_device_never_gives_more_than_the_ledger_says(room, machine):
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
    assert ledger == room.reserve + 512 + 1024 + 70_144 + 1_000_448 + 2 * MIB + 6 * MIB + 118 * MIB
    assert device >= ledger  # v1 counts what the driver reserves for itself
