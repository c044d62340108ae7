"""Stream-ordered memory by each kind of stream, on several devices, while the quota changes."""

import contextlib

import driver_memory
import pytest
from pool_source import OWN
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator

QUOTA = 2 * GIB

# Two contexts, of which the first is current, and what each pool holds beyond its charge.
TWO = (
    OWN
    + """
first, second = P(), P()
check(cuda.cuInit(0))
for ordinal, made in ((1, second), (0, first)):
    check(cuda.cuDevicePrimaryCtxRetain(byref(made), ordinal))
    check(cuda.cuCtxSetCurrent(made))
def within(made, call):
    check(cuda.cuCtxSetCurrent(made))
    result = call()
    check(cuda.cuCtxSetCurrent(first))
    return result
def free_bytes():
    return [within(made, available) for made in (first, second)]
def stream():
    made = P()
    check(cuda.cuStreamCreate(byref(made), 1))
    return made
def pool_on(ordinal):
    result, pool = make(place=(1, ordinal))
    check(result)
    return pool
def current_pool(ordinal):
    pool = P()
    check(cuda.cuDeviceGetMemPool(byref(pool), ordinal))
    return pool
def allocate(size, on):
    pointer = U64()
    return alloc_async(byref(pointer), SIZE(size), on), pointer
def allocate_from(pool, size, on):
    pointer = U64()
    call = getattr(cuda, "cuMemAllocFromPoolAsync" + suffix)
    return call(byref(pointer), SIZE(size), pool, on), pointer
def synchronize():
    for made in (first, second):
        within(made, lambda: check(cuda.cuCtxSynchronize()))
here, there = stream(), within(second, stream)
"""
)

# By name: the pool, and a request of *size* bytes of it.
WAYS = {
    "a stream of the other device": (
        "current_pool(1)",
        "allocate(size, there)",
    ),
    "the default stream of the other context": (
        "current_pool(1)",
        "within(second, lambda: allocate(size, None))",
    ),
    "the legacy stream of the other context": (
        "current_pool(1)",
        "within(second, lambda: allocate(size, P(1)))",
    ),
    "the thread's stream of the other context": (
        "current_pool(1)",
        "within(second, lambda: allocate(size, P(2)))",
    ),
    "a pool of the other device, in a stream here": (
        "pool_on(1)",
        "allocate_from(pool, size, here)",
    ),
    "a pool of the other device, in the thread's stream here": (
        "pool_on(1)",
        "allocate_from(pool, size, P(2))",
    ),
    "a pool of the other device, in a stream there": (
        "pool_on(1)",
        "allocate_from(pool, size, there)",
    ),
}


@pytest.fixture(params=simulator.POOLS)
def two(request, make_room, tmp_path):
    """Return a quota of 2 GiB on each of two devices, which place blocks in each known way."""
    machine = simulator.open_machine("h100:2", root=tmp_path / "two", pools=request.param)
    return make_room(machine, vmemory=QUOTA, ordinals=(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "_ptsz"])
@pytest.mark.parametrize("way", WAYS)
def test_memory_is_charged_to_the_device_of_its_pool(two, way, form):
    """Wherever it is freed; and it is refused by that device's quota alone."""
    for device in (0, 1):
        driver_memory.watch(two.machine, device)
    pool, request = WAYS[way]
    answer = two.ask(
        TWO
        + f"""
pool = {pool}
def request(size):
    return {request}
before, found = free_bytes(), []
for on in (here, there, P(2)):
    result, pointer = request(100 * MIB)
    check(result)
    now = free_bytes()
    refused = request(now[1] + 64 * MIB)[0]
    found.append([before[0] - now[0], before[1] - now[1] - holds(pool), refused])
    check(free_async(pointer, on))
    synchronize()
    found.append([before[0] - free_bytes()[0], before[1] - free_bytes()[1] - holds(pool)])
check(within(first, lambda: alloc(available())[0]))
found.append(request(100 * MIB)[0])
answer(found)
""",
        form,
    )
    assert answer == [[0, 0, 2], [0, 0]] * 3 + [0]
    assert max(driver_memory.peak_bytes(two.machine, device) for device in (0, 1)) <= QUOTA


# Threads that use a stream of each kind, on both devices, until standard input is closed.
CHURN = (
    TWO
    + """
import random
pools = [current_pool(0), current_pool(1), pool_on(0), pool_on(1)]
for pool in pools:
    keep_all(pool)
over = threading.Event()
def churn(seed):
    chance, live = random.Random(seed), []
    check(cuda.cuCtxSetCurrent((first, second)[seed % 2]))
    streams = [stream(), P(1), P(2), None]
    while not over.is_set():
        on, ways = chance.choice(streams), chance.random()
        size = chance.choice([512, MIB, 33 * MIB, chance.randrange(1, 300 * MIB)])
        if ways < 0.25:
            result, pointer = allocate(size, on)
        elif ways < 0.5:
            result, pointer = allocate_from(chance.choice(pools), size, on)
        else:
            result, pointer = 2, None
        if result == 0:
            live.append(pointer)
        elif result != 2:
            check(result)
        if live and ways > 0.5:
            check(free_async(live.pop(chance.randrange(len(live))), on))
        if ways > 0.9:
            check(cuda.cuStreamSynchronize(on))
        if ways > 0.99:
            check(cuda.cuMemPoolTrimTo(chance.choice(pools), SIZE(0)))
    for pointer in live:
        check(free_async(pointer, None))
    check(cuda.cuCtxSynchronize())
threads = [threading.Thread(target=churn, args=(10 * int(sys.argv[2]) + n,)) for n in range(4)]
[thread.start() for thread in threads]
answer("ready"); sys.stdin.read()
over.set()
[thread.join() for thread in threads]
answer("done")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "_ptsz"])
def test_a_quota_lowered_below_use_lets_no_pool_grow(two, form):
    for device in (0, 1):
        driver_memory.watch(two.machine, device)
    above = 0
    with contextlib.ExitStack() as started:
        programs = [started.enter_context(two.start(CHURN, form, n)) for n in range(2)]
        for program in programs:
            started.callback(program.kill)
            assert program.stdout.readline() == '"ready"\n'
        for turn in range(40):
            low = GIB + 100 * MIB * (turn % 4)
            two.set_vmemory(low)
            charged = two.usage().charged[:2]
            for device in (0, 1):
                allowed = max(low, charged[device])
                counted = driver_memory.counted_bytes(two.machine, samples=500, device=device)
                assert max(counted) <= allowed
                above += charged[device] > low
            two.set_vmemory(QUOTA)
        assert above, "no time was more charged than the lowered quota"
        assert [program.communicate()[0] for program in programs] == ['"done"\n'] * 2
    assert max(driver_memory.peak_bytes(two.machine, device) for device in (0, 1)) <= QUOTA
    assert not two.usage().slots
    assert [driver_memory.used_bytes(two.machine, device) for device in (0, 1)] == [0, 0]
