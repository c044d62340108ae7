"""Races between threads, and of allocations and frees with the end of their context."""

import pytest
import work_source
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator


def test_allocations_in_a_context_that_is_being_destroyed_are_all_given_back(room):
    answer = room.ask("""
primary = context()
before = available()
current, stop = P(), threading.Event()
def work():
    held = []
    while not stop.is_set():
        if cuda.cuCtxSetCurrent(current):
            continue
        for _ in range(5):
            result, pointer = alloc(1 * MIB)
            if result == 0:
                held.append(pointer)
        for pointer in held:
            free(pointer)
        held.clear()
    cuda.cuCtxSetCurrent(None)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(300):
    made = P()
    result = cuda.cuCtxCreate_v2(byref(made), UINT(0), 0)
    if result:
        raise SystemExit(f"no room for a context after {_} rounds: {result}")
    current.value = made.value
    pointers = [alloc(2 * MIB)[1] for _ in range(10)]
    check(cuda.cuCtxDestroy_v2(made))
stop.set()
for thread in threads: thread.join()
check(cuda.cuCtxSetCurrent(primary))
answer(before - available())
""")
    assert answer == 0


def test_a_free_refused_because_its_context_is_gone_keeps_no_charge(room, machine):
    """The context is destroyed while the driver, which will refuse it, executes the free."""
    answer = room.ask("""
primary = context()
before = available()
left = []
for _ in range(300):
    made = P()
    check(cuda.cuCtxCreate_v2(byref(made), UINT(0), 0))
    pointers = [alloc(2 * MIB)[1] for _ in range(50)]
    thread = threading.Thread(target=lambda: [free(pointer) for pointer in pointers])
    thread.start()
    check(cuda.cuCtxDestroy_v2(made))
    thread.join()
    check(cuda.cuCtxSetCurrent(primary))
    left.append(before - available())
answer(max(left))
""")
    assert answer == 0


def test_rows_are_charged_before_the_driver_takes_their_padding(room, machine):
    """A refused request never reached the driver: the fault injected into free is still due."""
    simulator.set_faults(machine, "call cuMemFree_v2 1 700")
    answer = room.ask("""
context()
_, pointer = alloc(4096)
before = available()
narrow = cuda.cuMemAllocPitch_v2(byref(U64()), byref(SIZE()), SIZE(1), SIZE(8 * MIB), UINT(4))
answer([narrow, before - available(), free(pointer)])
""")
    assert answer == [2, 0, 700]


def test_memory_may_be_freed_on_a_stream_of_another_context(make_room, tmp_path):
    machine = simulator.open_machine("h100:2", root=tmp_path / "pair")
    room = make_room(machine, ordinals=(0, 1))
    answer = room.ask("""
first, second = context(0), context(1)
before = available()
_, pointer = alloc(64 * MIB)
stream = P()
check(cuda.cuStreamCreate(byref(stream), UINT(0)))
check(cuda.cuCtxSetCurrent(first))
check(cuda.cuMemFreeAsync(pointer, stream))
current = P()
check(cuda.cuCtxGetCurrent(byref(current)))
check(cuda.cuCtxSetCurrent(second))
check(cuda.cuCtxSynchronize())
answer([before - available(), current.value == first.value])
""")
    assert answer == [0, True]


def test_memory_freed_on_a_stream_goes_with_its_context(room):
    answer = room.ask("""
primary = context()
before = available()
made, stream, gate = P(), P(), threading.Event()
check(cuda.cuCtxCreate_v2(byref(made), UINT(0), 0))
_, pointer = alloc(64 * MIB)
check(cuda.cuMemFreeAsync(pointer, None))
check(cuda.cuCtxDestroy_v2(made))
check(cuda.cuCtxSetCurrent(primary))
events = []
for _ in range(8):  # a use of the old event's stale handle would hit one of these
    event = P()
    check(cuda.cuEventCreate(byref(event), UINT(0)))
    events.append(event)
wait = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(None, wait, None))
for event in events:
    check(cuda.cuEventRecord(event, None))
left = before - available()
gate.set()
check(cuda.cuCtxSynchronize())
answer([left, [cuda.cuEventQuery(event) for event in events]])
""")
    assert answer == [0, [0] * 8]


def test_primary_context_that_was_in_use_before_it_was_retained_is_given_back(room):
    """NVIDIA's runtime may create it by private tables, which no hook sees."""
    answer = room.ask("""
check(cuda.cuInit(0))
bare = ctypes.CDLL("libcuda-origin.so.1")
made = P()
check(bare.cuDevicePrimaryCtxRetain(byref(made), 0))
check(cuda.cuCtxSetCurrent(made))
_, pointer = alloc(64 * MIB)
check(cuda.cuDevicePrimaryCtxRetain(byref(made), 0))
during = available()
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
context()
answer([during, available()])
""")
    assert answer == [2 * GIB - room.reserve - 64 * MIB, 2 * GIB - room.reserve]


def test_memory_that_was_freed_unseen_is_given_back_with_its_address(room):
    answer = room.ask("""
context()
bare = ctypes.CDLL("libcuda-origin.so.1")
before = available()
_, first = alloc(64 * MIB)
check(bare.cuMemFree_v2(first))
_, second = alloc(64 * MIB)
answer([first.value == second.value, before - available()])
""")
    assert answer == [True, 64 * MIB]


FULL_QUEUE = (
    work_source.LAUNCHES
    + """
begin()
made = context()
gate, there, known = P(), U64(), P()
spin_ns.value = 2000
check(cuda.cuMemHostAlloc(byref(gate), SIZE(4096), UINT(2)))
word = ctypes.c_uint32.from_address(gate.value)
check(cuda.cuMemHostGetDevicePointer_v2(byref(there), gate, UINT(0)))
for _ in range(400):  # measured: then few marks are set
    check(plain())
wait()
def fill(full, launches, given):
    check(cuda.cuCtxSetCurrent(made))
    check(cuda.cuStreamWaitValue32_v2(full, there, UINT(1), UINT(1)))
    for _ in range(launches):
        check(plain(on=full))
    given.set()
    check(cuda.cuStreamSynchronize(full))
def other(done):
    check(cuda.cuCtxSetCurrent(made))
    CALLS
    done.set()
def is_stuck(launches):
    full, given, done = P(), threading.Event(), threading.Event()
    word.value = 0
    check(cuda.cuStreamCreate(byref(full), UINT(1)))
    filler = threading.Thread(target=fill, args=(full, launches, given))
    filler.start()
    given.wait(0.2)  # in vain where the launches themselves fill the queue
    time.sleep(0.02)
    caller = threading.Thread(target=other, args=(done,))
    caller.start()
    stuck = not done.wait(10)
    word.value = 1
    caller.join()
    filler.join()
    check(cuda.cuStreamDestroy_v2(full))
    return stuck
answer([launches for launches in range(1010, 1024) if is_stuck(launches)])
"""
)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param("check(cuda.cuStreamDestroy_v2(own))", id="destroys a stream"),
        pytest.param(
            """check(cuda.cuStreamBeginCapture_v2(own, 0))
    check(cuda.cuStreamEndCapture(own, byref(P())))""",
            id="captures",
        ),
    ],
)
def test_mark_in_a_full_queue_holds_up_no_other_stream(make_room, machine, calls):
    """A stream waits for the host, and a mark takes the last place of its queue."""
    own = f"own = P()\n    check(cuda.cuStreamCreate(byref(own), UINT(1)))\n    {calls}"
    source = FULL_QUEUE.replace("CALLS", own)
    assert make_room(machine, vcore=90).ask(source) == []
