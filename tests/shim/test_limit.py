"""Context limits that reserve device memory: the part beyond the default is charged."""

import pytest
from shim_room import GIB, MIB, ask_bare

from pyvgpu.simulation import simulator

STACK, PRINTF, HEAP, DEPTH, LAUNCHES, FETCH = 0, 1, 2, 3, 4, 5
LIMITS = """
def get(limit):
    value = SIZE()
    check(cuda.cuCtxGetLimit(byref(value), limit))
    return value.value
def set_limit(limit, value):
    return cuda.cuCtxSetLimit(limit, SIZE(value))
"""


@pytest.mark.parametrize(
    ("limit", "more", "charged"),
    [
        pytest.param(HEAP, 256 * MIB, 256 * MIB, id="heap"),
        pytest.param(PRINTF, 64 * MIB, 64 * MIB, id="printf"),
        pytest.param(PRINTF, 4096, 4096, id="a little printf"),
        pytest.param(STACK, 1024, 132 * 2048 * 1024, id="stack of every resident thread"),
        pytest.param(DEPTH, 1, 150 * MIB, id="synchronisation depth"),
        pytest.param(LAUNCHES, 2048, 2 * MIB, id="pending launches"),
        pytest.param(FETCH, 64, 0, id="fetch granularity"),
    ],
)
def test_limit_beyond_its_default_is_charged_and_refunded(room, limit, more, charged):
    answer = room.ask(
        LIMITS
        + """
context()
before = available()
limit, more = map(int, sys.argv[1:])
default = get(limit)
check(set_limit(limit, default + more))
during = before - available()
check(set_limit(limit, default // 2))
lowered = before - available()
check(set_limit(limit, default + more))
check(cuda.cuDevicePrimaryCtxReset_v2(0))
context()
answer([during, lowered, before - available()])
""",
        limit,
        more,
    )
    assert answer == [charged, 0, 0]


def test_limit_over_the_quota_is_refused_and_stays_as_it_was(room):
    answer = room.ask(
        LIMITS
        + """
context()
before = available()
default = get(2)
check(set_limit(2, default + 512 * MIB))
wanted = ((2, 4 * GIB), (0, 64 << 10), (2, 2**64 - 1))
results = [set_limit(limit, value) for limit, value in wanted]
answer([results, get(2) - default, get(0), before - available()])
"""
    )
    assert answer == [[2, 2, 2], 512 * MIB, 1024, 512 * MIB]


def test_limits_are_each_contexts_own(room):
    answer = room.ask(
        LIMITS
        + """
primary = context()
before = available()
made = P()
check(set_limit(2, 108 * MIB))
check(cuda.cuCtxCreate_v2(byref(made), UINT(0), 0))
check(set_limit(2, 208 * MIB))
both = before - available()
check(cuda.cuCtxDestroy_v2(made))
check(cuda.cuCtxSetCurrent(primary))
answer([both, before - available()])
"""
    )
    assert answer == [room.reserve + 300 * MIB, 100 * MIB]


def test_limit_that_the_driver_refuses_is_not_charged(room, machine):
    source = (
        LIMITS
        + """
context()
before = available()
answer([[set_limit(limit, 1 << 30) for limit in (7, 99, -1)], set_limit(2, 64 * MIB),
        before - available()])
"""
    )
    simulator.set_faults(machine, "call cuCtxSetLimit * 1")
    assert room.ask(source)[1:] == [1, 0]
    simulator.set_faults(machine)
    assert room.ask(source)[0] == ask_bare(machine, source)[0]


def test_concurrent_changes_of_a_limit_leave_the_last_value(room):
    answer = room.ask(
        LIMITS
        + """
made = context()
before, default = available(), get(2)
def run(seed):
    check(cuda.cuCtxSetCurrent(made))
    for i in range(200):
        check(set_limit(2, default + (seed * 7 + i) % 13 * MIB))
threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
answer([before - available(), get(2) - default])
"""
    )
    charged, more = answer
    assert charged == (more + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)


def test_context_that_was_made_behind_the_shim_is_charged_with_its_first_limit(room):
    answer = room.ask(
        LIMITS
        + """
check(cuda.cuInit(0))
origin, made = ctypes.CDLL("libcuda-origin.so.1", os.RTLD_NOLOAD), P()
check(origin.cuCtxCreate_v2(byref(made), UINT(0), 0))
check(set_limit(2, 108 * MIB))
answer(available())
"""
    )
    assert answer == 2 * GIB - room.reserve - 100 * MIB
