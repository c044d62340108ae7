"""Contexts: per-thread stacks, primary contexts, settings."""

import pytest
from shim_room import ask_bare

from pyvgpu.simulation import simulator

OK, INVALID_VALUE, NOT_INITIALIZED = 0, 1, 3
INVALID_DEVICE, INVALID_CONTEXT, PEERS_ALREADY, PEERS_NOT = 101, 201, 704, 705

CONTEXTS = """
check(cuda.cuInit(0))
def create(ordinal=0, flags=0):
    made = P()
    check(cuda.cuCtxCreate_v2(byref(made), flags, ordinal))
    return made.value
def current():
    found = P()
    check(cuda.cuCtxGetCurrent(byref(found)))
    return found.value
def retain(ordinal=0):
    made = P()
    check(cuda.cuDevicePrimaryCtxRetain(byref(made), ordinal))
    return made.value
def state(ordinal=0):
    flags, active = UINT(), INT()
    check(cuda.cuDevicePrimaryCtxGetState(ordinal, byref(flags), byref(active)))
    return [flags.value, active.value]
"""


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    return simulator.open_machine("h100:2", tmp_path_factory.mktemp("machines"))


def ask(machine, source):
    return ask_bare(machine, CONTEXTS + source)


def test_a_thread_has_a_stack_of_contexts(machine):
    answer = ask(
        machine,
        """
names = {None: "none"}
seen = [names[current()]]
names[create()] = "first"
names[create(1)] = "second"
seen.append(names[current()])
popped = P()
check(cuda.cuCtxPopCurrent_v2(byref(popped)))
seen += [names[popped.value], names[current()]]
check(cuda.cuCtxPushCurrent_v2(popped))
seen.append(names[current()])
check(cuda.cuCtxSetCurrent(None))
seen.append(names[current()])
answer(seen)
""",
    )
    assert answer == ["none", "second", "second", "first", "second", "first"]


def test_each_thread_starts_without_a_context(machine):
    answer = ask(
        machine,
        """
made, seen = create(), []
def other():
    seen.append(current())
    seen.append(cuda.cuCtxSynchronize())
    check(cuda.cuCtxSetCurrent(P(made)))
    seen.append(current() == made)
thread = threading.Thread(target=other)
thread.start()
thread.join()
answer([*seen, current() == made])
""",
    )
    assert answer == [None, INVALID_CONTEXT, True, True]


def test_setting_the_current_context_replaces_the_top(machine):
    answer = ask(
        machine,
        """
first, second = create(), create()
check(cuda.cuCtxSetCurrent(P(first)))
check(cuda.cuCtxPopCurrent_v2(None))
answer([current() == first])
""",
    )
    assert answer == [True]


def test_a_destroyed_context_leaves_the_stack_and_its_handle_is_refused(machine):
    answer = ask(
        machine,
        """
first, second = create(), create()
check(cuda.cuCtxDestroy_v2(P(second)))
answer([current() == first, cuda.cuCtxDestroy_v2(P(second)), cuda.cuCtxPushCurrent_v2(P(second)),
        cuda.cuCtxSetCurrent(P(second)), cuda.cuCtxDestroy_v2(None)])
""",
    )
    assert answer == [True, INVALID_CONTEXT, INVALID_CONTEXT, INVALID_CONTEXT, INVALID_CONTEXT]


def test_a_context_that_another_thread_destroyed_is_gone_though_its_memory_is_used_again(machine):
    answer = ask(
        machine,
        """
mine = create()
def other():
    check(cuda.cuCtxDestroy_v2(P(mine)))
    create()
thread = threading.Thread(target=other)
thread.start()
thread.join()
answer([cuda.cuCtxSynchronize(), alloc(4096)[0]])
""",
    )
    assert answer == [INVALID_CONTEXT, INVALID_CONTEXT]


def test_popping_an_empty_stack_is_refused(machine):
    assert ask(machine, "answer(cuda.cuCtxPopCurrent_v2(byref(P())))") == INVALID_CONTEXT


def test_the_primary_context_lives_from_the_first_retain_to_the_last_release(machine):
    answer = ask(
        machine,
        """
seen = [state()]
first, second = retain(), retain()
seen.append([first == second, *state()])
seen.append([cuda.cuDevicePrimaryCtxRelease_v2(0), *state()])
seen.append([cuda.cuDevicePrimaryCtxRelease_v2(0), *state()])
seen.append([cuda.cuDevicePrimaryCtxRelease_v2(0), *state(), *state(1)])
answer(seen)
""",
    )
    assert answer == [[0, 0], [True, 0, 1], [0, 0, 1], [0, 0, 0], [INVALID_CONTEXT, 0, 0, 0, 0]]


def test_a_reset_ends_the_primary_context_however_often_it_was_retained(machine):
    answer = ask(
        machine,
        """
context()
retain()
before = available()
check(alloc(GIB)[0])
check(cuda.cuDevicePrimaryCtxReset_v2(0))
gone = [state()[1], alloc(4096)[0]]
context()
answer([*gone, available() == before, cuda.cuDevicePrimaryCtxReset_v2(1)])
""",
    )
    assert answer == [0, INVALID_CONTEXT, True, OK]


def test_a_primary_context_may_be_current_before_it_is_retained(machine):
    answer = ask(
        machine,
        """
handle = retain()
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
seen = [cuda.cuCtxSetCurrent(P(handle)), current() == handle, cuda.cuCtxSynchronize()]
ordinal = INT(-1)
seen += [cuda.cuCtxGetDevice(byref(ordinal)), ordinal.value]
retain()
answer([*seen, cuda.cuCtxSynchronize()])
""",
    )
    assert answer == [OK, True, INVALID_CONTEXT, OK, 0, OK]


def test_a_primary_context_cannot_be_destroyed(machine):
    answer = ask(machine, "h = retain(); answer([cuda.cuCtxDestroy_v2(P(h)), state()])")
    assert answer == [INVALID_CONTEXT, [0, 1]]


def test_flags_of_the_primary_context_are_kept_for_the_next_one(machine):
    answer = ask(
        machine,
        """
seen = [cuda.cuDevicePrimaryCtxSetFlags_v2(0, 4), state()]
context()
flags = UINT()
check(cuda.cuCtxGetFlags(byref(flags)))
answer([*seen, flags.value, cuda.cuDevicePrimaryCtxSetFlags_v2(0, 0x10000)])
""",
    )
    assert answer == [OK, [4, 0], 4, INVALID_VALUE]


def test_attaching_counts_and_the_last_detach_destroys(machine):
    answer = ask(
        machine,
        """
made, again = create(), P()
check(cuda.cuCtxAttach(byref(again), 0))
seen = [again.value == made, cuda.cuCtxDetach(again), current() == made]
answer([*seen, cuda.cuCtxDetach(again), current()])
""",
    )
    assert answer == [True, OK, True, OK, None]


def test_each_version_of_create_makes_a_context_on_the_device_asked_for(machine):
    answer = ask(
        machine,
        """
seen = []
for make in (lambda c: cuda.cuCtxCreate(c, 0, 1), lambda c: cuda.cuCtxCreate_v2(c, 0, 1),
             lambda c: cuda.cuCtxCreate_v3(c, None, 0, 0, 1),
             lambda c: cuda.cuCtxCreate_v4(c, None, 0, 1)):
    made, ordinal = P(), INT(-1)
    check(make(byref(made)))
    check(cuda.cuCtxGetDevice_v2(byref(ordinal), None))
    seen.append(ordinal.value)
answer(seen)
""",
    )
    assert answer == [1, 1, 1, 1]


def test_a_context_takes_memory_and_gives_it_back(machine):
    held = ask(
        machine,
        """
create()
before = available()
made = create()
taken = before - available()
check(cuda.cuCtxDestroy_v2(P(made)))
answer([taken, before - available()])
""",
    )
    assert held == [machine.devices[0].context_bytes, 0]


def test_limits_are_kept_by_each_context(machine):
    answer = ask(
        machine,
        """
create()
value, seen = SIZE(), []
seen.append({cuda.cuCtxGetLimit(byref(value), n) for n in range(11)} == {0})
check(cuda.cuCtxSetLimit(2, SIZE(64 << 20)))
check(cuda.cuCtxGetLimit(byref(value), 2))
seen.append(value.value)
create()
check(cuda.cuCtxGetLimit(byref(value), 2))
seen.append(value.value)
answer([*seen, cuda.cuCtxGetLimit(byref(value), 11), cuda.cuCtxSetLimit(11, SIZE(1))])
""",
    )
    assert answer == [True, 64 << 20, 8 << 20, 215, 215]


def test_limits_beyond_their_defaults_take_device_memory(machine):
    device = machine.devices[0]
    taken = ask(
        machine,
        """
create()
def taken(limit, value):
    before = available()
    check(cuda.cuCtxSetLimit(limit, SIZE(value)))
    return before - available()
MIB = 1 << 20
seen = [taken(2, 108 * MIB), taken(2, 58 * MIB), taken(2, 4 * MIB), taken(1, 11 * MIB),
        taken(0, 2048), cuda.cuCtxSetLimit(2, SIZE(1 << 40))]
answer(seen)
""",
    )
    stacks = 1024 * device.sm_count * 2048
    assert taken == [100 << 20, -50 << 20, -50 << 20, 10 << 20, stacks, 2]


def test_limits_go_with_their_context(machine):
    answer = ask(
        machine,
        """
create()
before, mine = available(), P(current())
other = create()
check(cuda.cuCtxSetLimit(2, SIZE(1 << 30)))
check(cuda.cuCtxDestroy_v2(P(other)))
check(cuda.cuCtxSetCurrent(mine))
answer(before - available())
""",
    )
    assert answer == 0


def test_peer_access_is_given_once_and_taken_once(machine):
    answer = ask(
        machine,
        """
other, mine = create(1), create(0)
can = INT(-1)
check(cuda.cuDeviceCanAccessPeer(byref(can), 0, 1))
answer([can.value, *(cuda.cuCtxEnablePeerAccess(P(other), 0) for _ in range(2)),
        *(cuda.cuCtxDisablePeerAccess(P(other)) for _ in range(2)),
        cuda.cuCtxEnablePeerAccess(P(mine), 0)])
""",
    )
    assert answer == [1, OK, PEERS_ALREADY, OK, PEERS_NOT, INVALID_DEVICE]


@pytest.mark.parametrize(
    ("call", "result"),
    [
        pytest.param("cuCtxCreate_v2(None, 0, 0)", INVALID_VALUE, id="nowhere to put it"),
        pytest.param("cuCtxCreate_v2(byref(P()), 0, 7)", INVALID_DEVICE, id="no such device"),
        pytest.param("cuCtxCreate_v2(byref(P()), 1 << 20, 0)", INVALID_VALUE, id="unknown flag"),
        pytest.param("cuCtxPushCurrent_v2(None)", INVALID_CONTEXT, id="push nothing"),
        pytest.param("cuCtxSetCurrent(P(4096))", INVALID_CONTEXT, id="not a context"),
        pytest.param("cuCtxGetCurrent(None)", INVALID_VALUE, id="current to nowhere"),
        pytest.param("cuCtxGetDevice(byref(INT()))", INVALID_CONTEXT, id="device of none"),
        pytest.param("cuCtxSynchronize()", INVALID_CONTEXT, id="wait for none"),
        pytest.param("cuCtxGetLimit(byref(SIZE()), 0)", INVALID_CONTEXT, id="limit of none"),
        pytest.param("cuDevicePrimaryCtxRetain(None, 0)", INVALID_VALUE, id="retain to nowhere"),
        pytest.param("cuDevicePrimaryCtxRetain(byref(P()), 7)", INVALID_DEVICE, id="retain none"),
    ],
)
def test_bad_calls_are_refused(machine, call, result):
    assert ask(machine, f"answer(cuda.{call})") == result


def test_every_call_in_the_child_of_a_fork_is_not_initialized(machine):
    answer = ask(
        machine,
        """
create()
read, write = os.pipe()
child = os.fork()
if not child:
    codes = [cuda.cuInit(0), cuda.cuCtxGetCurrent(byref(P())), cuda.cuDeviceGetCount(byref(INT())),
             cuda.cuCtxSynchronize(), cuda.cuModuleLoadData(byref(P()), b"x")]
    os.write(write, bytes(codes))
    os._exit(0)
os.waitpid(child, 0)
answer([list(os.read(read, 64)), cuda.cuCtxSynchronize()])
""",
    )
    assert answer == [[NOT_INITIALIZED] * 5, OK]
