"""Law parameters of a simulated machine change the behaviour of its devices and driver."""

import subprocess
import sys

import pytest
import shim_room
import work_source

from pyvgpu import errors
from pyvgpu.simulation import simulator

GATE = """
import threading
begin()
gate, reached, other = threading.Event(), threading.Event(), P()
opened = ctypes.CFUNCTYPE(None, P)(lambda _: reached.set() or gate.wait())
check(cuda.cuStreamCreate(byref(other), UINT(1)))
check(cuda.cuLaunchHostFunc(stream, opened, None))
"""


@pytest.fixture
def ask(tmp_path):
    """Return a function that runs a program on the bare driver of a machine with a law."""

    def run(source, **law):
        machine = simulator.open_machine("h100", root=tmp_path, law=simulator.Law(**law))
        return shim_room.ask_bare(machine, work_source.LAUNCHES + source)

    return run


@pytest.fixture
def ask_gated(ask):
    """Return such a function; the program has a stream whose work waits for a gate."""
    return lambda source, **law: ask(GATE + source, **law)


def test_a_stream_that_waits_holds_up_no_other(ask_gated):
    """For any number of launches into the other: more than all places of an older machine."""
    answer = ask_gated(
        """
spin_ns.value = 1000
behind = [plain() for _ in range(20)]
beside = [plain(on=other) for _ in range(3000)]
check(cuda.cuStreamSynchronize(other))
answer([set(behind + beside), cuda.cuStreamQuery(stream)])
gate.set()
wait()
""".replace("set(behind + beside)", "sorted(set(behind + beside))")
    )
    assert answer == [[0], 600]


LAUNCH_MANY = """
spin_ns.value = 1000
made, count = P(), [0]
check(cuda.cuCtxGetCurrent(byref(made)))
def launch():
    check(cuda.cuCtxSetCurrent(made))
    for _ in range(40):
        check(plain())
        count[0] += 1
thread = threading.Thread(target=launch)
thread.start()
"""


def test_a_launch_into_a_full_stream_waits_until_there_is_room(ask_gated):
    answer = ask_gated(
        LAUNCH_MANY
        + """
while count[0] < 15:
    time.sleep(0.001)
for _ in range(1000):
    check(plain(on=other))
    check(cuda.cuStreamSynchronize(other))
before = count[0]
gate.set()
thread.join()
wait()
answer([before, count[0]])
""",
        queue_depth=16,
    )
    assert answer == [15, 40]


def test_a_deeper_stream_has_room(ask_gated):
    answer = ask_gated(LAUNCH_MANY + "thread.join()\nanswer(count[0])\ngate.set()\nwait()\n")
    assert answer == 40


PAIRS = """
spin_ns.value = 100_000
events = [P() for _ in range(3)]
for event in events:
    check(cuda.cuEventCreate(byref(event), 0))
def record(event):
    check(cuda.cuEventRecord(event, stream))
def microseconds(begin, end):
    passed = ctypes.c_float()
    check(cuda.cuEventElapsedTime(byref(passed), begin, end))
    return round(passed.value * 1000, 2)
reached.wait()
record(events[0])
record(events[1])
check(plain())
record(events[2])
passed = threading.Event()
behind = ctypes.CFUNCTYPE(None, P)(lambda _: passed.set())
check(cuda.cuLaunchHostFunc(stream, behind, None))
gate.set()
passed.wait()
wait()
answer([microseconds(events[0], events[1]), microseconds(events[1], events[2])])
"""


def test_events_take_the_time_that_the_law_says(ask_gated):
    """The device is updated before the work is submitted, and then only by the gate."""
    assert ask_gated(PAIRS) == [0, 100]
    assert ask_gated(PAIRS, event_ns=3000, event_late_ns=1500) == [3, 103]


def test_kernel_duration_includes_its_launch_overhead(ask_gated):
    """Events see it, as they do on a device; the kernel's own clock does not."""
    assert ask_gated(PAIRS, launch_ns=2000) == [0, 102]


def test_events_in_turn_take_their_time_too(ask_gated):
    assert ask_gated(PAIRS, event_ns=3000, event_late_ns=1500, events_in_turn=True) == [3, 103]


NVML = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
check(nvml.nvmlInit_v2())
handle = P()
check(nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle)))
def shown():
    words = (ctypes.c_ulonglong * 3)()
    check(nvml.nvmlDeviceGetMemoryInfo(handle, words))
    return words[2]
"""


def test_allocations_take_the_steps_that_the_law_says(ask):
    source = """
context()
taken = []
for size in (1, 512, 513, MIB, 3 * MIB):
    before = available()
    check(alloc(size)[0])
    taken.append(before - available())
answer(taken)
"""
    assert ask(source) == [512, 512, 1024, 2 << 20, 4 << 20]
    assert ask(source, small_bytes=65536, large_bytes=1 << 20) == [
        65536, 65536, 65536, 1 << 20, 3 << 20,
    ]  # fmt: skip


SURVIVORS = """
context()
def taken():
    return (start - available()) // MIB
start = available()
pointers = [alloc(512)[1] for _ in range(8192)]
seen = [taken()]
for i, pointer in enumerate(pointers):
    if i % 4096:
        check(free(pointer))
seen.append(taken())
check(free(pointers[0]))
seen.append(taken())
check(free(pointers[4096]))
seen.append(taken())
larger = alloc(MIB + 1)[1]
seen.append(taken())
answer(seen)
"""


def test_a_block_of_small_allocations_counts_until_the_last_of_them_is_freed(ask):
    assert ask(SURVIVORS) == [4, 0, 0, 0, 2]
    assert ask(SURVIVORS, small_blocks=True) == [4, 4, 2, 0, 2]


def test_blocks_of_small_allocations_are_refused_when_none_is_left(ask):
    answer = ask(
        """
context()
check(alloc(available() // (2 * MIB) * 2 * MIB - 2 * MIB)[0])
first = [alloc(512)[0], available() < 2 * MIB]
answer([*first, alloc(4096)[0], alloc(512)[0]])
""",
        small_blocks=True,
    )
    assert answer == [0, True, 2, 0]


def test_pool_allocations_take_no_block(ask):
    answer = ask(
        """
context()
check(cuda.cuMemAllocAsync(byref(U64()), SIZE(512), None))
before = available()
check(cuda.cuMemAllocAsync(byref(U64()), SIZE(8192), None))
answer(before - available())
""",
        small_blocks=True,
    )
    assert answer == 0


def test_pools_grow_by_the_chunk_that_the_law_says(ask):
    source = """
context()
pool, size, seen = P(), U64(), []
check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
for mebibytes in (1, 40):
    before = available()
    check(cuda.cuMemAllocAsync(byref(U64()), SIZE(mebibytes * MIB), None))
    check(cuda.cuMemPoolGetAttribute(pool, 5, byref(size)))
    seen += [size.value // MIB, (before - available()) // MIB]
answer(seen)
"""
    assert ask(source) == [32, 32, 64, 32]
    assert ask(source, pool_chunk_bytes=2 << 20) == [2, 2, 42, 40]


def test_growing_and_trimming_a_pool_take_at_least_what_the_law_says(ask):
    source = """
context()
pool, address, spent = P(), U64(), []
check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
check(cuda.cuMemPoolSetAttribute(pool, 4, byref(U64(1 << 60))))
def timed(call, *arguments):
    before = time.monotonic_ns()
    check(call(*arguments))
    spent.append(time.monotonic_ns() - before >= 2 * 20_000_000)
timed(cuda.cuMemAllocAsync, byref(address), SIZE(64 * MIB), None)
check(cuda.cuMemFreeAsync(address, None))
check(cuda.cuStreamSynchronize(None))
timed(cuda.cuMemPoolTrimTo, pool, SIZE(0))
answer(spent)
"""
    assert ask(source, pool_chunk_ns=20_000_000) == [True, True]


CONTEXTS = """
context()
before, second = available(), P()
check(cuda.cuCtxCreate_v2(byref(second), 0, 0))
taken = before - available()
check(cuda.cuCtxDestroy_v2(second))
answer([taken // MIB, before - available()])
"""


def test_a_second_context_takes_what_the_law_says(ask):
    assert ask(CONTEXTS) == [520, 0]
    assert ask(CONTEXTS, second_context_percent=25) == [130, 0]


def test_context_takes_the_machines_configured_bytes(tmp_path):
    def taken(**options):
        machine = simulator.open_machine("h100", root=tmp_path, **options)
        source = "context()\ntotal = info()\nanswer((total[1] - total[0]) // MIB)\n"
        return shim_room.ask_bare(machine, source)

    assert taken() == 520
    assert taken(context_bytes=300 << 20) == 300
    assert taken() == 300
    with pytest.raises(errors.UsageError, match="context_bytes=-1: must be from 0 to less than"):
        taken(context_bytes=-1)


# A parent holds memory, forks a child, and is killed; the child is killed, or calls exec.
FORKED = (
    NVML
    + """
def until(condition):
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > 100:
            raise SystemExit(f"never: {shown() - empty}")
        time.sleep(0.01)
def wait_closed(end):
    while os.read(end, 1):
        pass
signal = Later("signal")
empty, held = shown(), 256 * MIB
from_parent, to_us = os.pipe()
parent = os.fork()
if parent == 0:
    os.close(from_parent)
    context()
    check(alloc(held)[0])
    to_child, to_exec = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_exec)
        wait_closed(to_child) if sys.argv[1] == "exec" else time.sleep(1000)
        os.execv("/bin/sleep", ["sleep", "1000"])
    os.close(to_child)
    os.write(to_us, b"%d\\n" % child)
    time.sleep(1000)
os.close(to_us)
child = int(os.read(from_parent, 100))
until(lambda: shown() >= empty + held)
os.kill(parent, 9)
os.waitpid(parent, 0)
"""
)


@pytest.mark.parametrize("end", ["killed", "exec"])
def test_memory_stays_with_a_forked_child_until_it_ends_or_execs(ask, end):
    source = FORKED.replace("sys.argv[1]", repr(end))
    if end == "killed":
        source += """
time.sleep(0.2)
kept = shown() - empty >= held
os.kill(child, 9)
until(lambda: shown() == empty)
answer(kept)
"""
    else:  # the child execs once its parent is gone
        source += """
until(lambda: shown() == empty)
answer(os.readlink(f"/proc/{child}/exe").endswith("sleep"))
os.kill(child, 9)
"""
    assert ask(source) is True


def test_memory_goes_with_its_process_where_forks_keep_nothing(ask):
    answer = ask(
        FORKED.replace("sys.argv[1]", "'killed'")
        + """
until(lambda: shown() == empty)
answer(os.kill(child, 0))
os.kill(child, 9)
""",
        fork_keeps=False,
    )
    assert answer is None


def test_refusal_does_not_wait_for_children_of_dead_processes(ask):
    """They may live for long: their memory is in use, and no allocation waits for its end."""
    answer = ask(
        FORKED.replace("sys.argv[1]", "'killed'")
        + """
context()
result = alloc(info()[1] - held // 2)[0]
os.kill(child, 9)
until(lambda: alloc(info()[1] - info()[1] // 50)[0] == 0)
answer(result)
"""
    )
    assert answer == 2


@pytest.mark.slow
def test_nvml_shows_memory_as_late_as_the_law_says(ask):
    source = (
        NVML
        + """
empty = shown()
context()
while shown() == empty:
    time.sleep(0.001)
before = shown()
begun = time.monotonic()
pointer = alloc(256 * MIB)[1]
at_once = shown() - before
while shown() == before:
    time.sleep(0.001)
after = time.monotonic() - begun
check(free(pointer))
while shown() != before:
    time.sleep(0.001)
answer([at_once // MIB, after])
"""
    )
    at_once, _ = ask(source)
    assert at_once == 256
    at_once, after = ask(source, nvml_memory_late_ns=500_000_000)
    assert at_once == 0
    assert after >= 0.5 - 0.5 / 32


def test_nvml_shows_utilization_as_late_as_the_law_says(ask):
    source = (
        NVML
        + """
begin()
def load():
    words = (UINT * 2)()
    check(nvml.nvmlDeviceGetUtilizationRates(handle, words))
    return words[0]
begun, spin_ns.value = time.monotonic(), 60_000_000_000
check(plain())
while load() < 3:
    time.sleep(0.005)
answer(time.monotonic() - begun)
os._exit(0)
"""
    )
    assert ask(source, nvml_load_late_ns=800_000_000) >= 0.8


@pytest.mark.parametrize(
    ("law", "problem"),
    [
        ({"slice_ns": 0}, "slice_ns=0: must be from 1 to 1000000000"),
        ({"switch_ns": -1}, "switch_ns=-1: must be from 0 to 1000000000"),
        ({"event_ns": 3, "event_late_ns": 4}, "event_late_ns=4: must be from 0 to event_ns=3"),
        ({"queue_depth": 8193}, "queue_depth=8193: must be from 1 to 8192"),
        ({"small_bytes": 0}, "small_bytes=0: must be from 1 to 1048576, such as 512"),
        ({"pool_chunk_bytes": 1}, "pool_chunk_bytes=1: must be from 2097152 to 1073741824"),
    ],
)
def test_invalid_law_names_the_value_and_the_rule(law, problem):
    with pytest.raises(errors.UsageError, match=problem):
        simulator.Law(**law)


def test_events_cost_nothing_where_nothing_takes_time(tmp_path):
    with pytest.raises(errors.UsageError, match="event_ns=3000: must be 0 where mode=free"):
        simulator.open_machine(
            "h100", root=tmp_path, mode="free", law=simulator.Law(event_ns=3000)
        )


def test_a_machine_keeps_its_law(tmp_path):
    law = simulator.Law(slice_ns=2_500_000, switch_ns=100_000, queue_depth=256, fork_keeps=True)
    made = simulator.open_machine("t4", root=tmp_path, law=law)
    assert simulator.read_machine(made.folder).law == law
    conf = made.folder / "machine.conf"
    conf.write_text(
        "".join(
            ln for ln in conf.read_text().splitlines(True) if "_ns=" not in ln or "kernel" in ln
        )
    )
    assert simulator.read_machine(made.folder).law == simulator.Law(
        queue_depth=256, fork_keeps=True
    )


def test_kernel_reports_when_the_device_ran_it(ask_gated):
    answer = ask_gated("""
image, working = P(), P()
text = IMAGE.replace(b"sim_spin(.param .u64 ns)", b"sim_work(.param .u64 ns, .param .u64 out)")
check(cuda.cuModuleLoadData(byref(image), text))
check(cuda.cuModuleGetFunction(byref(working), image, b"sim_work"))
out = alloc(64)[1]
for i in range(2):
    ns, at = U64(300_000), U64(out.value + 16 * i)
    both = (P * 2)(ctypes.addressof(ns), ctypes.addressof(at))
    check(cuda.cuLaunchKernel(working, 1, 1, 1, 1, 1, 1, 0, other, both, None))
check(cuda.cuStreamSynchronize(other))
times = (U64 * 4)()
check(cuda.cuMemcpyDtoH_v2(times, out, SIZE(32)))
gate.set()
wait()
answer([times[1] - times[0], times[3] - times[2], times[2] >= times[1] > 0])
""")
    assert answer == [300_000, 300_000, True]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("slice_ns=0", "slice_ns=0: must be from 1 to 1000000000, such as 1000000"),
        ("queue_depth=many", "queue_depth=many: must be from 1 to 8192, such as 1024"),
        ("fork_keeps=1", "fork_keeps=1: must be yes or no"),
    ],
)
def test_both_readers_refuse_a_key_by_one_rule(tmp_path, line, problem):
    made = simulator.open_machine("t4", root=tmp_path)
    conf = made.folder / "machine.conf"
    key = line.partition("=")[0]
    lines = [line if ln.startswith(f"{key}=") else ln for ln in conf.read_text().splitlines()]
    conf.write_text("\n".join([*lines, ""]))
    with pytest.raises(simulator.MachineError, match=problem):
        simulator.read_machine(made.folder)
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"],
        env=shim_room.bare_environment(made),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.rstrip().endswith(problem)
