"""Memory nodes of graphs: charged before the driver allocates their memory."""

import driver_memory
import pytest
from pool_source import PROPERTIES
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator

GRAPH = (
    PROPERTIES
    + """
class Allocation(ctypes.Structure):
    _fields_ = [("props", PoolProperties), ("access", P), ("accesses", SIZE), ("bytes", SIZE),
                ("address", U64)]
class Instantiation(ctypes.Structure):
    _fields_ = [("flags", U64), ("stream", P), ("node", P), ("result", INT)]
suffix = sys.argv[1] if len(sys.argv) > 1 else ""
stream = P()
def begin(ordinal=0):
    context(ordinal)
    check(cuda.cuStreamCreate(byref(stream), UINT(1)))
    return available()
def graph():
    made = P()
    check(cuda.cuGraphCreate(byref(made), UINT(0)))
    return made
def add_alloc(into, size, ordinal=0, behind=None, kind=1):
    params = Allocation(PoolProperties(1, 0, (kind, ordinal)), None, 0, size)
    node = P()
    check(cuda.cuGraphAddMemAllocNode(
        byref(node), into, behind and byref(behind), SIZE(bool(behind)), byref(params)))
    return node, U64(params.address)
def add_free(into, behind, address):
    node = P()
    check(cuda.cuGraphAddMemFreeNode(byref(node), into, byref(behind), SIZE(1), address))
    return node
def instantiate(of, flags=0):
    executable = P()
    result = cuda.cuGraphInstantiateWithFlags(byref(executable), of, U64(flags))
    return result, executable
def using(size, ordinal=0):
    made = graph()
    node, address = add_alloc(made, size, ordinal)
    add_free(made, node, address)
    result, executable = instantiate(made)
    check(result)
    return executable
def leaving(size, flags=0):
    made = graph()
    _, address = add_alloc(made, size)
    result, executable = instantiate(made, flags)
    check(result)
    return executable, address
def launch(executable, on=None):
    return getattr(cuda, "cuGraphLaunch" + suffix)(executable, on or stream)
def wait():
    check(cuda.cuStreamSynchronize(stream))
def reserved(ordinal=0):
    value = U64()
    check(cuda.cuDeviceGetGraphMemAttribute(ordinal, 2, byref(value)))
    return value.value
"""
)


@pytest.fixture(params=["", "_ptsz"])
def ask(request, room):
    return lambda source: room.ask(GRAPH + source, request.param)


def test_launch_is_charged_what_the_driver_takes_and_a_trim_gives_it_back(ask):
    answer = ask("""
before = begin()
executable = using(100 * MIB)
instantiated = before - available(), reserved()
check(launch(executable)); launched = before - available(), reserved()
check(launch(executable)); wait()
again = before - available(), reserved()
check(cuda.cuGraphExecDestroy(executable)); kept = before - available(), reserved()
check(cuda.cuDeviceGraphMemTrim(0))
answer([instantiated, launched, again, kept, before - available()])
""")
    *pairs, left = answer
    assert all(charged == held for charged, held in pairs)
    assert pairs[1][1] >= 100 * MIB
    assert pairs[1:] == [pairs[1]] * 3
    assert left == 0


def test_upload_is_charged(ask):
    answer = ask("""
before = begin()
executable = using(100 * MIB)
check(getattr(cuda, "cuGraphUpload" + suffix)(executable, stream))
answer([before - available(), reserved()])
""")
    charged, held = answer
    assert charged == held >= 100 * MIB


def test_memory_that_a_graph_leaves_is_charged_until_it_is_freed_and_trimmed(ask):
    answer = ask("""
before = begin()
executable, address = leaving(64 * MIB)
check(launch(executable)); wait()
check(cuda.cuGraphExecDestroy(executable))
check(cuda.cuDeviceGraphMemTrim(0))
left = before - available()
check(getattr(cuda, "cuMemFreeAsync" + suffix)(address, stream)); wait()
check(cuda.cuDeviceGraphMemTrim(0))
answer([left, before - available()])
""")
    assert answer == [64 * MIB, 0]


def test_graph_that_does_not_fit_is_refused_and_the_driver_not_asked(ask, machine):
    driver_memory.watch(machine)
    answer = ask("""
before = begin()
result, pointer = alloc(before - 256 * MIB)
made = graph()
add_alloc(made, 512 * MIB)
refused = instantiate(made)[0]
check(free(pointer))
result, executable = instantiate(made)
check(result)
check(alloc(before - 256 * MIB)[0])
answer([refused, launch(executable), before - available() - before + 256 * MIB])
""")
    assert answer == [2, 2, 0]
    assert driver_memory.peak_bytes(machine) <= 2 * GIB


def test_graph_that_needs_most_of_the_quota_can_be_relaunched(ask):
    """It reuses its memory: no further charge, and no wait."""
    answer = ask("""
begin()
executable = using(900 * MIB)
gate = threading.Event()
wait_for = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(launch(executable))
check(cuda.cuLaunchHostFunc(stream, wait_for, None))
results = [launch(executable) for _ in range(20)]
gate.set()
wait()
answer([results, reserved()])
""")
    assert answer == [[0] * 20, 928 * MIB]


def test_graphs_in_turn_share_the_quota_when_each_is_done(ask):
    answer = ask("""
begin()
pair = using(900 * MIB), using(700 * MIB)
results = []
for turn in range(20):
    results.append(launch(pair[turn % 2]))
    wait()
answer(results)
""")
    assert answer == [0] * 20


def test_captured_allocations_are_charged_at_the_launch(ask):
    answer = ask("""
before = begin()
pointer, made = U64(), P()
check(getattr(cuda, "cuStreamBeginCapture" + ("_ptsz" if suffix else "_v2"))(stream, 0))
check(getattr(cuda, "cuMemAllocAsync" + suffix)(byref(pointer), SIZE(100 * MIB), stream))
check(getattr(cuda, "cuMemFreeAsync" + suffix)(pointer, stream))
check(getattr(cuda, "cuStreamEndCapture" + suffix)(stream, byref(made)))
captured = before - available()
result, executable = instantiate(made)
check(result); check(launch(executable)); wait()
answer([captured, before - available(), reserved()])
""")
    captured, charged, held = answer
    assert captured == 0
    assert charged == held >= 100 * MIB


def test_capture_goes_on_past_a_full_quota(ask):
    """Captured allocations take no memory: none is refused, and none waits for the stream."""
    answer = ask("""
begin()
while alloc(64 * MIB)[0] == 0:
    pass
pointer, made = U64(), P()
check(getattr(cuda, "cuStreamBeginCapture" + ("_ptsz" if suffix else "_v2"))(stream, 0))
result = getattr(cuda, "cuMemAllocAsync" + suffix)(byref(pointer), SIZE(100 * MIB), stream)
ended = getattr(cuda, "cuStreamEndCapture" + suffix)(stream, byref(made))
answer([result, ended, instantiate(made)[0]])
""")
    assert answer == [0, 0, 2]


def test_child_graphs_count(ask):
    answer = ask("""
class Child(ctypes.Structure):
    _fields_ = [("graph", P), ("ownership", INT)]
class Node(ctypes.Structure):
    _fields_ = [("type", INT), ("reserved", INT * 3), ("child", Child), ("rest", U64 * 40)]
before = begin()
outer, inner, node = graph(), graph(), P()
first, address = add_alloc(inner, 300 * MIB)
add_free(inner, first, address)
params = Node(4, (0, 0, 0), Child(inner, 1))
check(cuda.cuGraphAddNode_v2(byref(node), outer, None, None, SIZE(0), byref(params)))
result, executable = instantiate(outer)
check(result); check(launch(executable)); wait()
answer([before - available(), reserved()])
""")
    charged, held = answer
    assert charged == held >= 300 * MIB


def test_every_form_of_instantiation_is_charged(room):
    answer = room.ask(
        GRAPH
        + """
begin()
results = []
for name, arguments in [
    ("cuGraphInstantiate", (None, None, SIZE(0))),
    ("cuGraphInstantiate_v2", (None, None, SIZE(0))),
    ("cuGraphInstantiateWithFlags", (U64(0),)),
    ("cuGraphInstantiateWithParams", (byref(Instantiation()),)),
    ("cuGraphInstantiateWithParams_ptsz", (byref(Instantiation()),))]:
    big, small = graph(), graph()
    add_alloc(big, 3 * GIB)
    add_alloc(small, 1 * MIB)
    executable = P()
    make = lambda of: getattr(cuda, name)(byref(executable), of, *arguments)
    results.append([make(big), make(small), launch(executable)])
answer(results)
"""
    )
    assert answer == [[2, 0, 0]] * 5


def test_graph_memory_in_host_memory_is_not_charged(room):
    answer = room.ask(
        GRAPH
        + """
before = begin()
made = graph()
params, node = Allocation(PoolProperties(1, 0, (2, 0)), None, 0, 64 * MIB), P()
result = cuda.cuGraphAddMemAllocNode(byref(node), made, None, SIZE(0), byref(params))
if result == 0:
    result, executable = instantiate(made)
    check(result); check(launch(executable))
answer([result, before - available()])
"""
    )
    assert answer[1] == 0


def test_unused_graph_and_pool_memory_makes_room_for_linear_memory(ask):
    answer = ask("""
before = begin()
check(launch(using(1 * GIB))); wait()
answer([alloc(before - 2 * MIB)[0], reserved()])
""")
    assert answer == [0, 0]


def test_threads_that_launch_graphs_never_take_more_than_the_quota(room, machine):
    driver_memory.watch(machine)
    answer = room.ask(
        GRAPH
        + """
import random
made = context()
def work(seed):
    own, draw, granted = P(), random.Random(seed), 0
    check(cuda.cuCtxSetCurrent(made))
    check(cuda.cuStreamCreate(byref(own), UINT(1)))
    with one_at_a_time:
        executables = [using(draw.randrange(1, 700) * MIB) for _ in range(3)]
    all_ready.wait()
    for _ in range(200):
        what = draw.random()
        if what < 0.9:
            granted += launch(draw.choice(executables), own) == 0
        elif what < 0.95:
            check(cuda.cuDeviceGraphMemTrim(0))
        else:
            check(cuda.cuStreamSynchronize(own))
    check(cuda.cuStreamSynchronize(own))
    grants.append(granted)
grants, one_at_a_time, all_ready = [], threading.Lock(), threading.Barrier(4)
before = available()
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
check(cuda.cuDeviceGraphMemTrim(0))
answer([len(grants), sum(grants), before - available()])
"""
    )
    threads, granted, left = answer
    assert (threads, left) == (4, 0)
    assert granted > 100
    assert driver_memory.peak_bytes(machine) <= 2 * GIB


def test_graph_on_a_second_device_is_charged_there(make_room, tmp_path):
    machine = simulator.open_machine("h100:2", root=tmp_path / "pair")
    room = make_room(machine, ordinals=(0, 1))
    answer = room.ask(
        GRAPH
        + """
first, second = begin(0), begin(1)
check(launch(using(100 * MIB, 1))); wait()
charged = second - available()
context(0)
answer([charged, reserved(1), first - available()])
"""
    )
    charged, held, elsewhere = answer
    assert charged == held >= 100 * MIB
    assert elsewhere == 0
