"""Green contexts: charged like contexts; memory allocated in them is the primary context's."""

import driver_memory
from green_source import GREEN
from shim_room import GIB, MIB, ask_bare

from pyvgpu.simulation import simulator


def test_green_context_is_charged_and_given_back(room, machine):
    driver_memory.watch(machine)
    answer = room.ask(
        GREEN
        + """
context()
before = available()
_, made = green()
during = available()
check(cuda.cuGreenCtxDestroy(made))
answer([before - during, before - available(), cuda.cuGreenCtxDestroy(made)])
"""
    )
    assert answer == [room.reserve, 0, 201]
    assert driver_memory.peak_bytes(machine) == 2 * room.reserve


def test_green_context_is_charged_what_it_takes_and_not_a_whole_context(make_room, tmp_path):
    law = simulator.Law(green_context_percent=10)
    machine = simulator.open_machine("h100", tmp_path / "machines", law=law)
    driver_memory.watch(machine)
    room = make_room(machine)
    answer = room.ask(
        GREEN
        + """
context()
before = available()
made = [green()[1] for _ in range(8)]
during = available()
for each in made:
    check(cuda.cuGreenCtxDestroy(each))
answer([before - during, before - available()])
"""
    )
    assert answer == [8 * (room.reserve // 10), 0]
    assert driver_memory.peak_bytes(machine) == room.reserve + 8 * (room.reserve // 10)


def test_green_context_is_never_made_current_in_another_thread(room):
    """A free of linear memory on its stream needs an event, which another context can create."""
    answer = room.ask(
        GREEN
        + """
primary = context()
_, made = green()
stream = P()
check(cuda.cuGreenCtxStreamCreate(byref(stream), made, 1, 0))
current, over = threading.Event(), threading.Event()
def use():
    check(cuda.cuCtxSetCurrent(converted(made)))
    current.set()
    over.wait()
user = threading.Thread(target=use)
user.start()
current.wait()
before = available()
_, address = alloc(64 * MIB)
check(cuda.cuMemFreeAsync(address, stream))
check(cuda.cuStreamSynchronize(stream))
refused = cuda.cuCtxPushCurrent_v2(converted(made))
answer([before - available(), refused])
over.set()
user.join()
"""
    )
    assert answer == [0, 201]


def test_green_context_alone_holds_the_primary_context(room):
    answer = room.ask(
        GREEN
        + """
check(cuda.cuInit(0))
_, made = green()
check(cuda.cuCtxSetCurrent(converted(made)))
held = [available()]
context()
check(alloc(256 * MIB)[0])
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
held.append(available())
check(cuda.cuGreenCtxDestroy(made))
context()
answer([*held, available()])
"""
    )
    both = 2 * GIB - 2 * room.reserve
    assert answer == [both, both - 256 * MIB, 2 * GIB - room.reserve]


def test_memory_that_is_allocated_in_a_green_context_stays_when_that_is_gone(room):
    answer = room.ask(
        GREEN
        + """
primary = context()
before = available()
_, made = green()
check(cuda.cuCtxSetCurrent(converted(made)))
_, kept = alloc(64 * MIB)
check(cuda.cuCtxSetCurrent(primary))
check(cuda.cuGreenCtxDestroy(made))
held = before - available()
check(free(kept))
answer([held, before - available()])
"""
    )
    assert answer == [64 * MIB, 0]


def test_green_context_that_does_not_fit_is_refused(make_room, machine):
    room = make_room(machine, vmemory=2 * machine.devices[0].context_bytes - 1 * MIB)
    answer = room.ask(
        GREEN
        + """
check(cuda.cuInit(0))
result, made = green()
context()
again, _ = green()
answer([result, made.value, again, available()])
"""
    )
    assert answer == [2, None, 2, room.reserve - 1 * MIB]


def test_stream_of_a_green_context_allocates_from_its_devices_pool(make_room, tmp_path):
    machine = simulator.open_machine("h100:2", tmp_path / "machines")
    room = make_room(machine, ordinals=(0, 1))
    answer = room.ask(
        GREEN
        + """
first, second = context(0), context(1)
_, made = green(0)
stream, address = P(), U64()
check(cuda.cuGreenCtxStreamCreate(byref(stream), made, 1, 0))
def held():
    sizes = []
    for each in (first, second):
        check(cuda.cuCtxSetCurrent(each))
        sizes.append(available())
    return sizes
before = held()
check(cuda.cuMemAllocAsync(byref(address), SIZE(64 * MIB), stream))
during = held()
check(cuda.cuMemFreeAsync(address, stream))
check(cuda.cuStreamSynchronize(stream))
answer([[a - b for a, b in zip(before, during)], [a - b for a, b in zip(before, held())]])
"""
    )
    assert answer == [[64 * MIB, 0], [0, 0]]


def test_reset_of_the_primary_context_keeps_what_its_green_contexts_hold(room, machine):
    answer = room.ask(
        GREEN
        + """
context()
_, made = green()
check(cuda.cuCtxSetCurrent(converted(made)))
check(alloc(64 * MIB)[0])
check(cuda.cuDevicePrimaryCtxReset_v2(0))
refused = cuda.cuCtxFromGreenCtx(byref(P()), made)
context()
held = available()
check(cuda.cuGreenCtxDestroy(made))
answer([refused, held, available()])
"""
    )
    assert answer == [201, 2 * GIB - 2 * room.reserve, 2 * GIB - room.reserve]


def test_creating_a_green_context_releases_no_other_reference(make_room, machine):
    room = make_room(machine, vmemory=4 * GIB)
    answer = room.ask(
        GREEN
        + """
check(cuda.cuInit(0))
done = []
def make():
    while not done:
        result, made = green()
        if result or cuda.cuGreenCtxDestroy(made):
            done.append("green")
makers = [threading.Thread(target=make) for _ in range(4)]
for maker in makers:
    maker.start()
for _ in range(2000):
    if done:
        break
    context()
    if cuda.cuMemGetInfo_v2(byref(SIZE()), byref(SIZE())) or alloc(MIB)[0]:
        done.append("primary")
    check(cuda.cuDevicePrimaryCtxReset_v2(0))
done.append("")
for maker in makers:
    maker.join()
answer(done)
"""
    )
    assert answer == [""]


def test_invalid_green_context_gets_the_drivers_result(room, machine):
    source = (
        GREEN
        + """
check(cuda.cuInit(0))
made = P()
answer([cuda.cuGreenCtxCreate(byref(made), None, 0, 1),
        cuda.cuGreenCtxCreate(byref(made), P(0x1230), 0, 1),
        cuda.cuGreenCtxCreate(None, description(), 0, 1),
        cuda.cuGreenCtxCreate(byref(made), description(), 7, 1),
        cuda.cuGreenCtxCreate(byref(made), description(), 0, 64),
        cuda.cuGreenCtxDestroy(P(0x1230)), cuda.cuCtxFromGreenCtx(byref(made), P(0x1230)),
        cuda.cuDevicePrimaryCtxGetState(0, byref(UINT()), byref(INT()))])
"""
    )
    assert room.ask(source) == ask_bare(machine, source)
