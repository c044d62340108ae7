"""Physical memory with handles: charged from creation until handle and mappings are gone."""

import driver_memory
import pytest
from shim_room import GIB, MIB, ask_bare
from vmm_source import VMM

from pyvgpu.simulation import simulator


def test_memory_is_charged_when_it_is_created_and_needs_no_context(room):
    answer = room.ask(
        VMM
        + """
check(cuda.cuInit(0))
answer([create(size)[0] for size in (GIB, GIB - 2 * MIB, 4 * MIB, 2 * MIB, 2 * MIB)])
"""
    )
    assert answer == [0, 0, 2, 0, 2]


def test_memory_is_charged_to_the_device_that_it_names(make_room, tmp_path):
    machine = simulator.open_machine("h100:2", root=tmp_path / "pair")
    room = make_room(machine, ordinals=(0, 1))
    answer = room.ask(
        VMM
        + """
second, first = context(1), context(0)
before = available()
result, handle = create(64 * MIB, on_device(1))
on_first = before - available()
check(cuda.cuCtxSetCurrent(second))
answer([result, on_first, before - available(), release(handle), before - available()])
"""
    )
    assert answer == [0, 0, 64 * MIB, 0, 0]


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        pytest.param("release(h)", [0], id="released"),
        pytest.param("map(a, G, h); release(h); unmap(a, G)", [1, 1, 0], id="unmapped last"),
        pytest.param("map(a, G, h); unmap(a, G); release(h)", [1, 1, 0], id="released last"),
        pytest.param(
            "map(a, G, h); map(b, G, h); release(h); unmap(a, G); unmap(b, G)",
            [1, 1, 1, 1, 0],
            id="mapped twice",
        ),
        pytest.param(
            "map(a, G, h); retain(a)[0]; release(h); unmap(a, G); release(h)",
            [1, 1, 1, 1, 0],
            id="retained",
        ),
        pytest.param(
            "map(a, G, h); release(h); retain(a + 5)[0]; unmap(a, G); release(h)",
            [1, 1, 1, 1, 0],
            id="retained without a handle, inside",
        ),
        pytest.param(
            "map(a, G, h); retain(a)[0]; retain(a)[0]; unmap(a, G); release(h); release(h);"
            "release(h)",
            [1, 1, 1, 1, 1, 1, 0],
            id="three references",
        ),
        pytest.param(
            "map(a, G // 2, h); map(a + G // 2, G // 2, h, G // 2); release(h); unmap(a, G)",
            [1, 1, 1, 0],
            id="two mappings in one unmap",
        ),
    ],
)
def test_memory_stays_charged_until_the_last_use_of_it_ends(room, steps, held):
    answer = room.ask(
        VMM
        + """
context()
G = 64 * MIB
a = reserve(2 * G)
b = a + G
before = available()
result, h = create(G)
check(result)
answer([[eval(step), (before - available()) / G] for step in sys.argv[1].split(";")])
""",
        steps,
    )
    assert answer == [[0, each] for each in held]


def test_one_unmap_of_several_memories_gives_all_of_them_back(room):
    answer = room.ask(
        VMM
        + """
context()
before = available()
start, at, held = reserve(64 * MIB), 0, []
for size in (2 * MIB, 8 * MIB, 4 * MIB, 2 * MIB):
    result, handle = create(size)
    check(result or map(start + at, size, handle))
    check(release(handle))
    at += size
wrong = [unmap(start, 3 * MIB), unmap(start, 4 * MIB), unmap(start + 2 * MIB, 6 * MIB),
         unmap(start, at + 2 * MIB), unmap(start + 2 * MIB, at)]
held = before - available()
answer([all(wrong), held, unmap(start + 2 * MIB, 12 * MIB), before - available(),
        unmap(start, 2 * MIB), unmap(start + 14 * MIB, 2 * MIB), before - available()])
"""
    )
    assert answer == [True, 16 * MIB, 0, 4 * MIB, 0, 0, 0]


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("2, id=0", id="host"),
        pytest.param("3, id=0", id="NUMA node"),
        pytest.param("4, id=0", id="this thread's NUMA node"),
    ],
)
def test_host_memory_is_not_charged(room, machine, place):
    source = (
        VMM
        + f"""
context()
before = available()
result, handle = create(4 * GIB, Properties(type=1, place={place}))
answer([result, before - available()])
"""
    )
    assert room.ask(source) == ask_bare(machine, source)


def test_refused_requests_get_the_drivers_results(room, machine):
    """Even if they are larger than the quota: invalid arguments are reported first."""
    source = (
        VMM
        + """
context()
def wrong(size, **changes):
    properties = on_device()
    for name, value in changes.items():
        setattr(properties, name, value)
    return create(size, properties)[0]
answer([wrong(size, **changes)
        for size in (2 * MIB, 4 * GIB, 4 * GIB + 1, 1, (1 << 64) - 1)
        for changes in ({"type": 0}, {"place": 0}, {"place": 77}, {"id": 99}, {"id": -1})] +
       [wrong(size) for size in (1, 0, MIB, 1 << 60, (1 << 64) - 1, (1 << 64) - 2 * MIB)])
"""
    )
    assert room.ask(source) == ask_bare(machine, source)


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        pytest.param("cuMemCreate", "create(G)[0]; create(G)[0]", id="create"),
        pytest.param("cuMemRelease", "release(h); release(h)", id="release"),
        pytest.param("cuMemMap", "map(a, G, h); map(a, G, h); unmap(a, G)", id="map"),
        pytest.param("cuMemUnmap", "map(a, G, h); unmap(a, G); unmap(a, G)", id="unmap"),
        pytest.param(
            "cuMemRetainAllocationHandle",
            "map(a, G, h); retain(a)[0]; retain(a)[0]; release(h); release(h); unmap(a, G)",
            id="retain",
        ),
    ],
)
def test_single_driver_error_leaves_the_charge_exact(room, machine, fault, steps):
    simulator.set_faults(machine, f"call {fault} 1 999")
    before, first, *results, left = room.ask(
        VMM
        + """
context()
G = 64 * MIB
before = available()
a = reserve(G)
made, h = create(G) if "create" not in sys.argv[1] else (0, None)
check(made)
answer([before, made, *[eval(step) for step in sys.argv[1].split(";")], available()])
""",
        steps,
    )
    assert results.count(999) == 1
    assert set(results) == {0, 999}
    still_held = 64 * MIB if fault in ("cuMemCreate", "cuMemMap", "cuMemUnmap") else 0
    assert (before - left, first) == (still_held, 0)


def test_memory_survives_the_contexts(room):
    answer = room.ask(
        VMM
        + """
context()
before = available()
result, handle = create(64 * MIB)
check(result or cuda.cuDevicePrimaryCtxReset_v2(0))
context()
answer([before - available(), release(handle), before - available()])
"""
    )
    assert answer == [64 * MIB, 0, 0]


def test_memory_that_was_released_unseen_is_given_back_with_its_handle(room):
    answer = room.ask(
        VMM
        + """
context()
bare = ctypes.CDLL("libcuda-origin.so.1")
before = available()
handles = []
for _ in range(50):
    result, handle = create(2 * MIB)
    check(result or bare.cuMemRelease(handle))
    handles.append(handle.value)
answer([len(set(handles)) < 50, before - available() == len(set(handles)) * 2 * MIB])
"""
    )
    assert answer == [True, True]


def test_memory_that_no_hook_saw_cannot_be_kept_by_a_handle(room):
    """It would live on and never be charged."""
    answer = room.ask(
        VMM
        + """
context()
bare, handle, address = ctypes.CDLL("libcuda-origin.so.1"), U64(), reserve(2 * MIB)
check(bare.cuMemCreate(byref(handle), SIZE(2 * MIB), byref(on_device()), U64(0)))
check(bare.cuMemMap(U64(address), SIZE(2 * MIB), SIZE(0), handle, U64(0)))
answer([retain(address)[0], unmap(address, 2 * MIB), bare.cuMemRelease(handle),
        bare.cuMemRelease(handle)])
"""
    )
    assert answer == [1, 0, 0, 1]


def test_a_handle_that_was_released_gets_nothing_more(room, machine):
    """While its memory is mapped a driver may still accept it, and nothing would be charged."""
    driver_memory.watch(machine)
    answer = room.ask(
        VMM
        + """
context()
made, descriptor = [], INT(-1)
for _ in range(4):
    address = reserve(2 * GIB)
    result, handle = create(GIB, on_device(handles=1))
    made.append(result)
    check(result or map(address, GIB, handle) or release(handle))
    refused = [map(address + GIB, GIB, handle),
               cuda.cuMemExportToShareableHandle(byref(descriptor), handle, 1, U64(0)),
               map(address + GIB, GIB, handle), release(handle)]
    check(unmap(address, GIB))
answer([made, refused, available()])
"""
    )
    assert answer == [[0] * 4, [1] * 4, 2 * GIB - room.reserve]
    assert driver_memory.peak_bytes(machine) <= 2 * GIB


def test_threads_lose_nothing(room, machine):
    answer = room.ask(
        VMM
        + """
context()
before = available()
G, failures, shared = 2 * MIB, [], []
def work(seed):
    address = reserve(8 * G)
    for step in range(1500):
        result, handle = create(G * (1 + (seed + step) % 3))
        if result == 2:
            continue
        count = (step + seed) % 4
        results = [result] + [map(address + i * G, G, handle) for i in range(count)]
        if step % 2:
            results.append(release(handle))
        if count and step % 5 == 0:
            result, again = retain(address)
            results += [result, release(again)]
        if count:
            results.append(unmap(address, count * G))
        if not step % 2:
            results.append(release(handle))
        if any(results):
            failures.append(results)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer([failures, before - available()])
"""
    )
    assert answer == [[], 0]


def test_references_taken_and_given_by_threads_at_once_keep_the_memory(room):
    """One thread maps and unmaps it, others retain the mapped memory and release it."""
    answer = room.ask(
        VMM
        + """
context()
before = available()
G = 2 * MIB
address, stop, kept = reserve(G), threading.Event(), []
def borrow():
    while not stop.is_set():
        result, handle = retain(address)
        if result == 0 and len(kept) < 3:
            kept.append(handle)
        elif result == 0:
            check(release(handle))
threads = [threading.Thread(target=borrow) for _ in range(3)]
for thread in threads: thread.start()
rounds = 0
while rounds < 2000 or (not kept and rounds < 10**6):
    rounds += 1
    result, handle = create(G)
    check(result or map(address, G, handle))
    check(release(handle))
    check(unmap(address, G))
stop.set()
for thread in threads: thread.join()
held = before - available()
different = len({handle.value for handle in kept})
for handle in kept: check(release(handle))
answer([held == different * G, len(kept) > 0, before - available()])
"""
    )
    assert answer == [True, True, 0]


def test_a_forked_child_is_answered_as_by_the_driver(room, machine):
    source = (
        VMM
        + """
context()
address = reserve(2 * MIB)
result, handle = create(2 * MIB)
check(result or map(address, 2 * MIB, handle))
child = os.fork()
if child == 0:
    answer([create(2 * MIB)[0], release(handle), unmap(address, 2 * MIB), retain(address)[0]])
    os._exit(0)
os.waitpid(child, 0)
sys.stdout.close()
os._exit(0)
"""
    )
    assert room.ask(source) == ask_bare(machine, source) == [3, 3, 3, 3]


def test_the_device_never_holds_more_than_the_quota(room, machine):
    """By the machine's own account, while threads release, unmap and retain at once."""
    driver_memory.watch(machine)
    answer = room.ask(
        VMM
        + """
context()
before = available()
G = 128 * MIB
refused, failures = [], []
address = reserve(16 * G)
def work(seed):
    for step in range(400):
        place = address + (seed * 7 + step) % 16 * G
        result, handle = create(G)
        if result:
            refused.append(result)
            continue
        if map(place, G, handle) == 0:  # it may be another thread's just now
            check(release(handle))
            result, again = retain(place)
            unmapped = unmap(place, G)
            if unmapped or (result == 0 and release(again)):
                failures.append([unmapped, result])
        else:
            check(release(handle))
threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer([failures, sorted(set(refused)) in ([], [2]), before - available()])
"""
    )
    assert answer == [[], True, 0]
    assert driver_memory.peak_bytes(machine) <= 2 * GIB
