"""Contexts: each is charged its reserve; its memory is released when the driver ended it."""

import pytest
from shim_room import GIB, MIB, ask_bare


def test_context_is_charged_and_given_back(room):
    answer = room.ask("""
context()
during = info()
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
context()
answer([during, info()])
""")
    held = [2 * GIB - room.reserve, 2 * GIB]
    assert answer == [held, held]


CREATE = {
    "cuCtxCreate_v2": "cuda.cuCtxCreate_v2(byref(made), UINT(0), 0)",
    "cuCtxCreate_v3": "cuda.cuCtxCreate_v3(byref(made), None, 0, UINT(0), 0)",
    "cuCtxCreate_v4": "cuda.cuCtxCreate_v4(byref(made), None, UINT(0), 0)",
}


@pytest.mark.parametrize("create", CREATE.values(), ids=CREATE.keys())
@pytest.mark.parametrize("destroy", ["cuCtxDestroy_v2", "cuCtxDetach"])
def test_destroying_a_context_returns_what_it_held(room, create, destroy):
    answer = room.ask(f"""
primary = context()
before = available()
made = P()
check({create})
charged = before - available()
check(alloc(256 * MIB)[0]); check(alloc(4096)[0])
held = before - available()
check(cuda.{destroy}(made))
check(cuda.cuCtxSetCurrent(primary))
answer([charged, held, before - available()])
""")
    assert answer == [room.reserve, room.reserve + 258 * MIB, 0]


def test_context_that_does_not_fit_is_refused(make_room, machine):
    room = make_room(machine, vmemory=machine.devices[0].context_bytes + 64 * MIB)
    answer = room.ask("""
context()
made = P()
answer([cuda.cuCtxCreate_v2(byref(made), UINT(0), 0), made.value, available()])
""")
    assert answer == [2, None, 64 * MIB]


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_reset_gives_the_whole_quota_back_a_thousand_times(room, reset):
    answer = room.ask(f"""
sizes = set()
for _ in range(1000):
    context()
    whole = available()
    sizes.add(whole)
    check(alloc(whole)[0])
    if alloc(1)[0] != 2:
        raise SystemExit("over the quota")
    check(cuda.{reset}(0))
answer(sorted(sizes))
""")
    assert answer == [2 * GIB - room.reserve]


def test_only_the_last_release_ends_the_primary_context(room):
    answer = room.ask("""
context(); context()
_, pointer = alloc(512 * MIB)
before = available()
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
still = available()
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
context()
answer([before, still, available()])
""")
    room_bytes = 2 * GIB - room.reserve
    assert answer == [room_bytes - 512 * MIB, room_bytes - 512 * MIB, room_bytes]


def test_destroying_an_invalid_context_gets_the_drivers_result(room, machine):
    source = """
context()
answer([cuda.cuCtxDestroy_v2(P(0x1234)), cuda.cuCtxDestroy_v2(None), cuda.cuCtxDetach(None),
        cuda.cuDevicePrimaryCtxRelease_v2(99), cuda.cuDevicePrimaryCtxReset_v2(-1),
        cuda.cuDevicePrimaryCtxRetain(None, 0), cuda.cuDevicePrimaryCtxRetain(byref(P()), 7)])
"""
    assert room.ask(source) == ask_bare(machine, source)


def test_allocation_without_a_context_gets_the_drivers_result(room, machine):
    source = """
check(cuda.cuInit(0))
answer([alloc(4096)[0], cuda.cuMemGetInfo_v2(byref(SIZE()), byref(SIZE())),
        cuda.cuMemAllocManaged(byref(U64()), SIZE(4096), UINT(1))])
"""
    assert room.ask(source) == ask_bare(machine, source)


def test_context_that_was_attached_holds_its_memory_until_the_last_detaches(room):
    answer = room.ask("""
primary = context()
before = available()
made, same = P(), P()
check(cuda.cuCtxCreate_v2(byref(made), UINT(0), 0))
check(alloc(64 * MIB)[0])
check(cuda.cuCtxAttach(byref(same), UINT(0)))
check(cuda.cuCtxAttach(byref(same), UINT(0)))
held = []
for _ in range(3):
    held.append(before - available())
    check(cuda.cuCtxDetach(made))
    if len(held) < 3:
        check(cuda.cuCtxSetCurrent(made))
check(cuda.cuCtxSetCurrent(primary))
answer([held, before - available(), cuda.cuCtxDetach(made)])
""")
    assert answer == [[room.reserve + 64 * MIB] * 3, 0, 201]


def test_context_made_behind_the_shim_and_attached_is_charged(room):
    answer = room.ask("""
check(cuda.cuInit(0))
origin, made, same = ctypes.CDLL("libcuda-origin.so.1", os.RTLD_NOLOAD), P(), P()
check(origin.cuCtxCreate_v2(byref(made), UINT(0), 0))
check(cuda.cuCtxAttach(byref(same), UINT(0)))
check(cuda.cuCtxDetach(made))
answer(available())
""")
    assert answer == 2 * GIB - room.reserve


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"])
def test_a_primary_context_that_ended_but_is_current_answers_as_the_driver(room, machine, end):
    source = f"""
context()
check(cuda.{end}(0))
free, total = SIZE(7), SIZE(7)
answer([cuda.cuMemGetInfo_v2(byref(free), byref(total)), free.value, total.value, alloc(MIB)[0]])
"""
    bare = ask_bare(machine, source)
    assert bare[0] != 0
    assert room.ask(source) == bare
