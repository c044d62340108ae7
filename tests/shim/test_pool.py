"""Stream-ordered memory: a pool is charged for what it holds, exactly."""

import subprocess
from pathlib import Path

import pytest
from pool_source import POOL
from shim_room import GIB, MIB, ask_bare

from pyvgpu.simulation import simulator


@pytest.fixture(params=["", "_ptsz"])
def ask(request, room):
    return lambda source: room.ask(POOL + source, request.param)


def test_pool_is_charged_what_it_holds(ask):
    answer = ask("""
context()
before = available()
check(take(1)[0])
small = before - available(), held()
check(take(100 * MIB)[0])
answer([small, [before - available(), held()]])
""")
    for charged, held in answer:
        assert charged == held > 0


def test_pool_memory_is_refused_past_the_quota(ask):
    answer = ask("""
context()
before = available()
taken = []
while True:
    result, pointer = take(100 * MIB)
    if result:
        break
    taken.append(pointer)
answer([result, len(taken), before - available() - held(), before])
""")
    result, count, difference, before = answer
    assert result == 2
    assert difference == 0
    assert count >= before // (128 * MIB)


def test_freed_pool_memory_can_be_used_by_others(ask):
    answer = ask("""
context()
before = available()
for _ in range(20):
    taken = []
    for size in (300 * MIB, 400 * MIB, 100 * MIB):
        result, pointer = take(size)
        check(result)
        taken.append(pointer)
    for pointer in taken:
        check(free_async(pointer, None))
    check(cuda.cuCtxSynchronize())
    result, pointer = alloc(before - 64 * MIB)
    answer_now = result
    if result:
        break
    check(free(pointer))
answer([result, before - available() - held()])
""")
    assert answer == [0, 0]


def test_threshold_keeps_memory_and_a_later_request_gets_it_back(ask):
    answer = ask("""
context()
pool, most = P(), U64((1 << 64) - 1)
check(cuda.cuDeviceGetMemPool(byref(pool), 0))
check(cuda.cuMemPoolSetAttribute(pool, 4, byref(most)))
before = available()
result, pointer = take(1 * GIB)
check(result); check(free_async(pointer, None)); check(cuda.cuCtxSynchronize())
kept = before - available()
result, _ = take(1200 * MIB)
answer([kept, held() - (before - available()), result])
""")
    kept, difference, result = answer
    assert kept == GIB
    assert (difference, result) == (0, 0)


def test_unsynchronised_frees_do_not_refuse_a_request(ask):
    answer = ask("""
context()
results = []
for _ in range(30):
    result, pointer = take(1200 * MIB)
    results.append(result)
    if result == 0:
        check(free_async(pointer, None))
answer(results)
""")
    assert answer == [0] * 30


@pytest.mark.parametrize("devices", ["h100", "h100:2"], ids=["one device", "two devices"])
def test_a_request_without_a_context_gets_the_drivers_error_and_no_charge(
    make_room, tmp_path, devices
):
    machine = simulator.open_machine(devices, root=tmp_path / "machines")
    source = f"""
{POOL}
context()
check(take(MIB)[0])
before = available()
current = P()
check(cuda.cuCtxPopCurrent_v2(byref(current)))
found = [take(100 * MIB)[0]]
check(cuda.cuCtxPushCurrent_v2(current))
answer([*found, before - available()])
"""
    room = make_room(machine, ordinals=tuple(range(len(machine.devices))))
    refused, charged = room.ask(source, "")
    assert (refused, charged) == (ask_bare(machine, source, "")[0], 0)
    assert refused != 0


def test_absurd_size_is_refused(ask):
    assert ask("context(); answer([take((1 << 64) - 1)[0], take(1 << 62)[0], held()])") == [
        2,
        2,
        0,
    ]


def test_linear_memory_freed_on_a_stream_counts_until_the_stream_gets_there(ask):
    answer = ask("""
context()
before = available()
gate, pointer = threading.Event(), alloc(64 * MIB)[1]
wait = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(None, wait, None))
check(free_async(pointer, P(1)))
pending = before - available()
gate.set()
check(cuda.cuCtxSynchronize())
answer([pending, before - available()])
""")
    assert answer == [64 * MIB, 0]


def test_linear_memory_may_be_freed_on_a_stream(ask):
    answer = ask("""
context()
before = available()
_, pointer = alloc(64 * MIB)
result = free_async(pointer, None)
check(cuda.cuCtxSynchronize())
answer([result, before - available()])
""")
    assert answer == [0, 0]


@pytest.mark.parametrize("requests", ["large", "small"])
def test_threads_that_want_the_same_room_of_a_pool_never_grow_it_together(
    room, tmp_path, requests
):
    """The pool's high-water mark shows if it exceeded the quota even for a moment."""
    program = tmp_path / "rooms"
    library = room.driver.libcuda
    source = Path(__file__).parent / "rooms.c"
    command = ["cc", "-Wall", "-Werror", "-pthread", source, "-o", program]
    subprocess.run([*command, f"-L{library.parent}", f"-l:{library.name}"], check=True)
    done = subprocess.run(
        [program, requests],
        env=room.environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    available, high = map(int, done.stdout.split())
    assert high <= available


def test_unreadable_pool_keeps_its_charge(room, machine):
    simulator.set_faults(machine, "call cuMemPoolGetAttribute * 999")
    answer = room.ask(
        POOL
        + """
context()
before = available()
check(take(256 * MIB)[0])
answer(before - available())
""",
        "",
    )
    assert answer == 256 * MIB


def test_memory_released_by_a_synchronisation_is_available_to_others(make_room, machine):
    room = make_room(machine, vmemory=4 * GIB)
    holder = room.start(
        POOL
        + """
context()
_, pointer = take(2 * GIB)
check(free_async(pointer, None))
answer("freed"); sys.stdin.readline()
check(cuda.cuStreamSynchronize(None))
answer("idle"); sys.stdin.readline()
""",
        "",
    )
    assert holder.stdout.readline() == '"freed"\n'
    assert room.ask("context(); answer(alloc(2 * GIB)[0])") == 2
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == '"idle"\n'
    assert room.ask("context(); answer(alloc(2 * GIB)[0])") == 0
    holder.communicate()


def test_free_pool_memory_is_used_at_a_full_quota(ask):
    answer = ask("""
context()
_, pointer = take(1 * MIB)
while alloc(2 * MIB)[0] == 0:
    pass
answer([available() < 2 * MIB, take(1 * MIB)[0], take(40 * MIB)[0], held() // MIB])
""")
    assert answer == [True, 0, 2, 32]


def test_stream_without_query_gets_no_memory_beyond_the_quota(room, machine):
    simulator.set_faults(machine, "call cuStreamIsCapturing * 999")
    answer = room.ask(
        POOL + "context(); before = available(); answer([take(4 * GIB)[0], before - available()])",
        "",
    )
    assert answer == [999, 0]
