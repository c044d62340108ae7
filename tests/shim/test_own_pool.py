"""Pools that a program creates, selects for a device, trims and destroys."""

import driver_memory
import pytest
from pool_source import OWN
from shim_room import GIB, MIB


@pytest.fixture(params=["", "_ptsz"])
def ask(request, room):
    return lambda source: room.ask(OWN + source, request.param)


def test_any_number_of_pools_may_be_used(ask):
    answer = ask("""
context()
before = available()
results = []
for _ in range(200):
    check(cuda.cuDeviceSetMemPool(0, own_pool()))
    result, pointer = take(32 * MIB)
    results.append(result)
    if result == 0:
        check(free_async(pointer, None))
    check(cuda.cuCtxSynchronize())
answer([sorted(set(results)), before - available()])
""")
    assert answer == [[0], 0]


def test_own_pool_is_charged_what_it_holds_and_refused_past_the_quota(ask):
    answer = ask("""
context()
before, pool, taken = available(), own_pool(), []
while True:
    result, pointer = take_from(pool, 100 * MIB)
    if result:
        break
    taken.append(pointer)
full = before - available(), holds(pool)
for pointer in taken:
    check(free_async(pointer, None))
check(cuda.cuCtxSynchronize())
answer([result, full, before - available()])
""")
    result, (charged, held), left = answer
    assert (result, left) == (2, 0)
    assert charged == held >= 1 * GIB


def test_default_pool_may_be_named(ask):
    answer = ask("""
context()
before, pool = available(), P()
check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
result, pointer = take_from(pool, 64 * MIB)
answer([result, before - available(), take_from(P(), 64)[0]])
""")
    assert answer == [0, 64 * MIB, 1]


def test_trim_of_a_pool_gives_back(ask):
    answer = ask("""
context()
before, pool = available(), own_pool()
keep_all(pool)
_, pointer = take_from(pool, 256 * MIB)
check(free_async(pointer, None)); check(cuda.cuCtxSynchronize())
kept = before - available()
check(cuda.cuMemPoolTrimTo(pool, SIZE(64 * MIB)))
answer([kept, before - available()])
""")
    assert answer == [256 * MIB, 64 * MIB]


def test_destroyed_pool_is_charged_until_its_last_block_is_freed(ask):
    answer = ask("""
context()
before, pool = available(), own_pool()
keep_all(pool)
check(cuda.cuDeviceSetMemPool(0, pool))
_, pointer = take(256 * MIB)
results = [cuda.cuMemPoolDestroy(pool)]
outstanding = before - available()
value = U64()
results += [
    cuda.cuMemPoolDestroy(pool), take_from(pool, 512)[0], cuda.cuDeviceSetMemPool(0, pool),
    cuda.cuMemPoolTrimTo(pool, SIZE(0)), cuda.cuMemPoolGetAttribute(pool, 5, byref(value)),
    cuda.cuMemPoolSetAttribute(pool, 4, byref(value)),
    cuda.cuMemPoolGetAccess(byref(INT()), pool, byref((INT * 2)(1, 0))),
    cuda.cuMemPoolSetAccess(pool, None, SIZE(0))]
current, default = P(), P()
check(cuda.cuDeviceGetMemPool(byref(current), 0))
check(cuda.cuDeviceGetDefaultMemPool(byref(default), 0))
check(free_async(pointer, None)); check(cuda.cuStreamSynchronize(None))
answer([results, outstanding, current.value == default.value, before - available()])
""")
    assert answer == [[0] + [1] * 8, 256 * MIB, True, 0]


def test_destroyed_pools_are_destroyed_in_the_driver(ask):
    """An empty pool is freed at once, and its handle may be reused, on this device or another."""
    answer = ask("""
context()
before, handles = available(), []
for _ in range(20):
    pool = own_pool()
    handles.append(pool.value)
    _, pointer = take_from(pool, 32 * MIB)
    check(free_async(pointer, None))
    check(cuda.cuMemPoolDestroy(pool))
answer([len(set(handles)), before - available()])
""")
    assert answer == [1, 0]


def test_default_pool_cannot_be_destroyed(ask):
    answer = ask("""
context()
pool = P()
check(take(64)[0])
check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
answer([cuda.cuMemPoolDestroy(pool), take(64)[0]])
""")
    assert answer == [1, 0]


@pytest.mark.slow
def test_pools_never_take_more_than_the_quota(ask, machine, room):
    driver_memory.watch(machine)
    ask("""
import random
random.seed(5)
context()
pools, live = [own_pool() for _ in range(3)], []
keep_all(pools[0])
for _ in range(3000):
    what = random.random()
    if what < 0.5:
        size = random.choice([512, 1 * MIB, 33 * MIB, random.randrange(1, 200 * MIB)])
        result, pointer = take_from(random.choice(pools), size) if what < 0.3 else take(size)
        if result == 0:
            live.append((pointer, free_async))
    elif what < 0.55:
        result, pointer = alloc(random.randrange(1, 300 * MIB))
        if result == 0:
            live.append((pointer, lambda pointer, _: free(pointer)))
    elif live:
        pointer, give_back = live.pop(random.randrange(len(live)))
        check(give_back(pointer, None))
    if what > 0.98:
        check(cuda.cuStreamSynchronize(None))
answer(0)
""")
    assert GIB < driver_memory.peak_bytes(machine) <= 2 * GIB


@pytest.mark.slow
def test_processes_with_pools_that_are_killed_never_hold_more_than_the_quota(make_room, machine):
    room = make_room(machine, vmemory=6 * GIB)
    churn = (
        OWN
        + """
import itertools, random
random.seed(int(sys.argv[2]))
context()
pools, live = [own_pool(), own_pool()], []
keep_all(pools[0])
answer("ready"); sys.stdin.readline()
for done in itertools.count():
    if done == 500:
        answer("churned")
    result, pointer = take_from(random.choice(pools), random.randrange(1, 400 * MIB))
    if result == 0:
        live.append(pointer)
    if live and random.random() < 0.5 + result:
        check(free_async(live.pop(random.randrange(len(live))), None))
    if random.random() < 0.05:
        check(cuda.cuStreamSynchronize(None))
"""
    )
    driver_memory.watch(machine)
    for turn in range(3):
        processes = [room.start(churn, "", turn * 4 + each) for each in range(4)]
        assert [process.stdout.readline() for process in processes] == ['"ready"\n'] * 4
        for process in processes:
            print(file=process.stdin, flush=True)
        assert [process.stdout.readline() for process in processes] == ['"churned"\n'] * 4
        for process in processes:
            process.kill()
            process.communicate()
    assert 3 * GIB < driver_memory.peak_bytes(machine) <= 6 * GIB
    left = room.ask("context(); answer(available())")
    assert left == 6 * GIB - room.reserve


def test_pool_of_the_device_may_change_while_others_allocate(ask):
    answer = ask("""
made = context()
before, pools, done = available(), [own_pool() for _ in range(3)], []
def churn():
    check(cuda.cuCtxSetCurrent(made))
    while not done:
        result, pointer = take(48 * MIB)
        check(result)
        check(free_async(pointer, None))
threads = [threading.Thread(target=churn) for _ in range(2)]
[thread.start() for thread in threads]
for turn in range(2000):
    check(cuda.cuDeviceSetMemPool(0, pools[turn % 3]))
done.append(True)
[thread.join() for thread in threads]
difference = before - available() - sum(holds(pool) for pool in pools) - held()
difference += holds(pools[1999 % 3]) # which is the device's, too
default = P()
check(cuda.cuDeviceGetDefaultMemPool(byref(default), 0))
answer(difference - holds(default))
""")
    assert answer == 0


@pytest.mark.parametrize(("kind", "place"), [(1, (2, 0)), (1, (3, 0)), (2, (1, 0)), (2, (0, 0))])
def test_pools_elsewhere_are_charged_only_if_they_can_hold_device_memory(ask, kind, place):
    answer = ask(f"""
context()
result, pool = make({kind}, {place})
before = available()
answer([result, take_from(pool, 64 * MIB)[0], before - available()])
""")
    assert answer == [0, 0, 64 * MIB if kind == 2 else 0]
