"""Managed memory is charged to each device that a program moves it to, until it is freed."""

import driver_memory
import pytest
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator

QUOTA = 2 * GIB
SIZE = 64 * MIB

# Two contexts, managed memory on device 0, and the free bytes of device 1.
MANAGED = """
class Place(ctypes.Structure):
    _fields_ = [("kind", INT), ("id", INT)]
first, second = P(), P()
check(cuda.cuInit(0))
for ordinal, made in ((1, second), (0, first)):
    check(cuda.cuDevicePrimaryCtxRetain(byref(made), ordinal))
    check(cuda.cuCtxSetCurrent(made))
def managed(size):
    pointer = U64()
    check(cuda.cuMemAllocManaged(byref(pointer), SIZE(size), UINT(1)))
    return pointer
def elsewhere():
    check(cuda.cuCtxSetCurrent(second))
    free_there = available()
    check(cuda.cuCtxSetCurrent(first))
    return free_there
def prefetch(pointer, size, place, form=""):
    if "_v2" in form:
        place = Place(1, place) if place >= 0 else Place(2, 0)
    flags = (UINT(0),) if "_v2" in form else ()
    return getattr(cuda, "cuMemPrefetchAsync" + form)(pointer, SIZE(size), place, *flags, None)
"""


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("h100:2", root=tmp_path / "machines")


@pytest.fixture
def room(make_room, machine):
    return make_room(machine, vmemory=QUOTA, ordinals=(0, 1))


@pytest.mark.parametrize("form", ["", "_ptsz", "_v2", "_v2_ptsz"])
def test_prefetched_memory_is_charged_to_its_new_device_until_it_is_freed(room, machine, form):
    answer = room.ask(
        MANAGED
        + f"""
before, there = available(), elsewhere()
pointer = managed({SIZE})
results = [prefetch(pointer, {SIZE}, 1, sys.argv[1])]
moved = [before - available(), there - elsewhere()]
for place in (1, 0, -1):
    results.append(prefetch(pointer, {SIZE}, place, sys.argv[1]))
again = there - elsewhere()
results.append(free(pointer))
answer([results, moved, again, available() == before, elsewhere() == there])
""",
        form,
    )
    assert answer == [[0] * 5, [SIZE, SIZE], SIZE, True, True]


def test_a_part_that_is_prefetched_is_charged_as_the_whole(room):
    answer = room.ask(
        MANAGED
        + f"""
there, pointer = elsewhere(), managed({SIZE})
check(prefetch(U64(pointer.value + 4096), 4096, 1))
moved = there - elsewhere()
check(cuda.cuMemFreeAsync(pointer, None))
check(cuda.cuCtxSynchronize())
answer([moved, elsewhere() == there])
"""
    )
    assert answer == [SIZE, True]


def test_memory_that_does_not_fit_its_new_device_stays_where_it_is(room, machine):
    driver_memory.watch(machine, 1)
    answer = room.ask(
        MANAGED
        + """
check(cuda.cuCtxSetCurrent(second))
check(alloc(available() - 32 * MIB)[0])
check(cuda.cuCtxSetCurrent(first))
there, pointer = elsewhere(), managed(64 * MIB)
refused = [prefetch(pointer, 64 * MIB, 1), cuda.cuMemAdvise(pointer, SIZE(64 * MIB), 3, 1)]
answer([refused, there - elsewhere(), prefetch(pointer, 64 * MIB, 0)])
"""
    )
    assert answer == [[2, 2], 0, 0]
    assert driver_memory.noted_bytes(machine, 1) <= QUOTA


@pytest.mark.parametrize("form", ["", "_v2"])
def test_memory_is_charged_to_its_preferred_device(room, form):
    """Other advice does not place memory."""
    answer = room.ask(
        MANAGED
        + f"""
there, pointer = elsewhere(), managed({SIZE})
place, host = (1, -1) if not sys.argv[1] else (Place(1, 1), Place(2, 0))
advise = getattr(cuda, "cuMemAdvise" + sys.argv[1])
charged = []
for advice, at in ((1, place), (5, place), (3, host), (3, place), (4, place)):
    check(advise(pointer, SIZE({SIZE}), advice, at))
    charged.append(there - elsewhere())
check(free(pointer))
answer([charged, elsewhere() == there])
""",
        form,
    )
    assert answer == [[0, 0, 0, SIZE, SIZE], True]


@pytest.mark.parametrize("failing", ["cuMemPrefetchAsync", "cuMemAdvise"])
def test_a_driver_that_refuses_to_move_leaves_no_charge(room, machine, failing):
    simulator.set_faults(machine, f"call {failing} 1 999")
    answer = room.ask(
        MANAGED
        + f"""
there, pointer = elsewhere(), managed({SIZE})
move = {{"cuMemPrefetchAsync": lambda: prefetch(pointer, {SIZE}, 1),
        "cuMemAdvise": lambda: cuda.cuMemAdvise(pointer, SIZE({SIZE}), 3, 1)}}[sys.argv[1]]
answer([move(), there - elsewhere(), move(), there - elsewhere()])
""",
        failing,
    )
    assert answer == [999, 0, 0, SIZE]


def test_a_free_that_the_driver_refuses_keeps_both_charges(room, machine):
    simulator.set_faults(machine, "call cuMemFree_v2 1 700")
    answer = room.ask(
        MANAGED
        + f"""
there, pointer = elsewhere(), managed({SIZE})
check(prefetch(pointer, {SIZE}, 1))
answer([free(pointer), there - elsewhere(), free(pointer), there - elsewhere()])
"""
    )
    assert answer == [700, SIZE, 0, 0]


def test_prefetched_memory_ends_with_its_allocating_context(room):
    answer = room.ask(
        MANAGED
        + f"""
there, pointer = elsewhere(), managed({SIZE})
check(prefetch(pointer, {SIZE}, 1))
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
check(cuda.cuCtxSetCurrent(second))
answer(there - available())
"""
    )
    assert answer == 0


# Two allocations, in one call that takes ranges, places and the first range of each place.
BATCH = """
def batch(form, ranges, *places):
    addresses, sizes = zip(*ranges)
    firsts, devices = zip(*places)
    return getattr(cuda, form)(
        (U64 * len(ranges))(*addresses), (SIZE * len(ranges))(*sizes), SIZE(len(ranges)),
        (Place * len(places))(*(Place(1, device) for device in devices)),
        (SIZE * len(places))(*firsts), SIZE(len(places)), U64(0), stream)
stream = P()
check(cuda.cuStreamCreate(byref(stream), UINT(1)))
there, pointers = elsewhere(), [managed(32 * MIB), managed(64 * MIB)]
ranges = [(pointers[0].value, 32 * MIB), (pointers[1].value + MIB, 4 * MIB)]
"""


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("do", ["Prefetch", "DiscardAndPrefetch"])
def test_each_range_of_a_batch_is_charged_to_its_own_place(room, do, suffix):
    answer = room.ask(
        MANAGED
        + BATCH
        + """
form, charged = sys.argv[1], []
for places in ([(0, 0)], [(0, 0), (1, 1)], [(0, 1)], [(0, 1), (1, 0)]):
    check(batch(form, ranges, *places))
    charged.append((there - elsewhere()) // MIB)
for pointer in pointers:
    check(free(pointer))
answer([charged, elsewhere() == there])
""",
        f"cuMem{do}BatchAsync{suffix}",
    )
    assert answer == [[0, 64, 96, 96], True]


def test_a_batch_of_which_a_range_does_not_fit_moves_nothing(room, machine):
    driver_memory.watch(machine, 1)
    answer = room.ask(
        MANAGED
        + BATCH
        + """
check(cuda.cuCtxSetCurrent(second))
check(alloc(available() - 48 * MIB)[0])
check(cuda.cuCtxSetCurrent(first))
there = elsewhere()
refused = batch("cuMemPrefetchBatchAsync", ranges, (0, 1))
left = there - elsewhere()
answer([refused, left, batch("cuMemPrefetchBatchAsync", ranges[:1], (0, 1)), there - elsewhere()])
"""
    )
    assert answer == [2, 0, 0, 32 * MIB]
    assert driver_memory.noted_bytes(machine, 1) <= QUOTA


def test_a_batch_that_the_driver_refuses_leaves_no_charge(room):
    """Its second range is longer than the allocation."""
    answer = room.ask(
        MANAGED
        + BATCH
        + """
ranges[1] = (pointers[1].value, 65 * MIB)
answer([batch("cuMemPrefetchBatchAsync", ranges, (0, 1)), there - elsewhere()])
"""
    )
    assert answer == [1, 0]


@pytest.fixture
def three(make_room, tmp_path):
    machine = simulator.open_machine("h100:3", root=tmp_path / "three")
    return make_room(machine, vmemory=QUOTA, ordinals=(0, 1, 2))


@pytest.mark.parametrize("allocate_on", [0, 2])
def test_memory_is_charged_to_each_device_that_it_was_moved_to(three, allocate_on):
    """Also to one that it is only advised to, and to each of them once."""
    answer = three.ask(
        f"""
size = {SIZE}
contexts = [context(ordinal) for ordinal in range(3)]
def free_bytes():
    found = []
    for made in contexts:
        check(cuda.cuCtxSetCurrent(made))
        found.append(available())
    check(cuda.cuCtxSetCurrent(contexts[{allocate_on}]))
    return found
before, pointer = free_bytes(), U64()
check(cuda.cuMemAllocManaged(byref(pointer), SIZE(size), UINT(1)))
def charged():
    return [(old - new) // size for old, new in zip(before, free_bytes())]
steps = [charged()]
for device in (0, 1, 0, 2, 1):
    if device == 1:
        check(cuda.cuMemAdvise(pointer, SIZE(size), 3, device))
    else:
        check(cuda.cuMemPrefetchAsync(pointer, SIZE(size), device, None))
    steps.append(charged())
check(free(pointer))
answer([steps, charged()])
"""
    )
    first = [int(device == allocate_on) for device in range(3)]
    second = [max(one, other) for one, other in zip(first, (1, 0, 0), strict=True)]
    third = [max(one, other) for one, other in zip(second, (0, 1, 0), strict=True)]
    assert answer == [[first, second, third, third, [1, 1, 1], [1, 1, 1]], [0, 0, 0]]


def test_memory_moved_by_a_killed_process_is_free_on_every_device(room, machine):
    with room.start(
        MANAGED
        + f"""
pointer = managed({SIZE})
check(prefetch(pointer, {SIZE}, 1))
answer(0); sys.stdin.read()
"""
    ) as holder:
        assert holder.stdout.readline() == "0\n"
        assert list(room.usage().charged[:2]) == [SIZE + room.reserve] * 2
        holder.kill()
    whole = "context({}); answer(available())"
    assert [room.ask(whole.format(device)) for device in (0, 1)] == [QUOTA - room.reserve] * 2
    assert [driver_memory.used_bytes(machine, device) for device in (0, 1)] == [0, 0]
