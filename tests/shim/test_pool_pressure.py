"""Pools at a full quota: an asynchronous call never waits for the device, and a pool with a
release threshold keeps its memory."""

import driver_memory
import pytest
import shim_room
from pool_source import OWN
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator

# Requests of the default pool or of the program's own, on streams; a gate that holds one stream;
# and how often a pool changed its size, checked after each call.
PRESSURE = (
    OWN
    + """
from_own = sys.argv[2] == "own"
def stream():
    made = P()
    check(cuda.cuStreamCreate(byref(made), 1))
    return made
def the_pool():
    pool = P()
    if from_own:
        return own_pool()
    check(cuda.cuDeviceGetMemPool(byref(pool), 0))
    return pool
def request(pool, size, on):
    pointer = U64()
    if from_own:
        allocate = getattr(cuda, "cuMemAllocFromPoolAsync" + suffix)
        return allocate(byref(pointer), SIZE(size), pool, on), pointer
    return alloc_async(byref(pointer), SIZE(size), on), pointer
class Gate:
    def __init__(self, on):
        self.opened = threading.Event()
        late = threading.Timer(20, self.opened.set)  # a call that waits goes on, and is found
        late.daemon = True
        late.start()
        self.call = ctypes.CFUNCTYPE(None, P)(lambda _: self.opened.wait())
        check(cuda.cuLaunchHostFunc(on, self.call, None))
class Sizes:
    def __init__(self, pool):
        self.pool, self.last, self.changes = pool, holds(pool), 0
    def sample(self):
        now = holds(self.pool)
        self.changes += now != self.last
        self.last = now
def synchronize(on):
    check(cuda.cuStreamSynchronize(on))
"""
)


@pytest.fixture(params=["", "_ptsz"])
def form(request):
    return request.param


@pytest.fixture(params=["default", "own"])
def whose(request):
    return request.param


@pytest.fixture(params=simulator.POOLS)
def room(request, tmp_path):
    """Return a quota of 2 GiB on a driver with each known way of placing blocks."""
    machine = simulator.open_machine("h100", root=tmp_path / "machines", pools=request.param)
    with shim_room.room(tmp_path / "room", machine) as made:
        yield made


def test_request_past_the_quota_is_refused_while_its_stream_is_held(room, form, whose):
    answer = room.ask(
        PRESSURE
        + """
context()
pool, on = the_pool(), stream()
check(alloc(available() - 64 * MIB)[0])
gate = Gate(on)
result, _ = request(pool, 256 * MIB, on)
held = not gate.opened.is_set()
fits, _ = request(pool, 32 * MIB, on)
gate.opened.set(); synchronize(on)
answer([result, held, fits])
""",
        form,
        whose,
    )
    assert answer == [2, True, 0]


def test_memory_freed_behind_a_gate_is_no_reason_to_wait(room, form, whose):
    answer = room.ask(
        PRESSURE
        + """
context()
pool, on = the_pool(), stream()
result, pointer = request(pool, 1 * GIB, on)
gate = Gate(on)
check(free_async(pointer, on))
again, _ = request(pool, 1 * GIB, on)
more, _ = request(pool, 1 * GIB, on)
held = not gate.opened.is_set()
gate.opened.set(); synchronize(on)
answer([result, again, more, held])
""",
        form,
        whose,
    )
    assert answer == [0, 0, 2, True]


def test_graph_past_the_quota_is_refused_while_its_stream_is_held(room, form):
    answer = room.ask(
        PRESSURE
        + """
context()
on, graph, made = stream(), P(), P()
class Node(ctypes.Structure):  # CUDA_MEM_ALLOC_NODE_PARAMS
    _fields_ = [("pool", PoolProperties), ("access", P), ("count", SIZE), ("bytes", SIZE),
                ("address", U64)]
params = Node(PoolProperties(1, 0, (1, 0)), None, 0, 256 * MIB, 0)
check(cuda.cuGraphCreate(byref(graph), 0))
check(cuda.cuGraphAddMemAllocNode(byref(P()), graph, None, SIZE(0), byref(params)))
check(cuda.cuGraphInstantiateWithFlags(byref(made), graph, ctypes.c_ulonglong(0)))
check(alloc(available() - 64 * MIB)[0])
gate = Gate(on)
result = getattr(cuda, "cuGraphLaunch" + suffix)(made, on)
held = not gate.opened.is_set()
gate.opened.set(); synchronize(on)
answer([result, held])
""",
        form,
        "default",
    )
    assert answer == [2, True]


# A quarter of a full pool, freed and reallocated, in blocks of the sizes that follow.
ROUNDS = (
    PRESSURE
    + """
context()
pool, on = the_pool(), stream()
keep_all(pool)
sizes, most, taken = SIZES, int(sys.argv[3]), []
while True:
    size = sizes[len(taken) % len(sizes)]
    if holds(pool) + -(-size // (32 * MIB)) * (32 * MIB) > most:
        break
    result, pointer = request(pool, size, on)
    check(result)
    taken.append((size, pointer))
before = holds(pool)
quarter = taken[: len(taken) // 4]
del taken[: len(quarter)]
seen = Sizes(pool)
for turn in range(200):
    for _, pointer in quarter:
        check(free_async(pointer, on)); seen.sample()
    if turn % 3 == 2:
        synchronize(on); seen.sample()
    for number, (size, _) in enumerate(quarter):
        result, pointer = request(pool, size, on)
        check(result)
        quarter[number] = (size, pointer); seen.sample()
answer([seen.changes, before // MIB])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param("[32 * MIB]", id="alike"),
        pytest.param("[128 * MIB, 64 * MIB, 30 * MIB, 2 * MIB]", id="mixed"),
        pytest.param("[100 * MIB + 5000, 3 * MIB + 77, 700000]", id="odd"),
    ],
)
def test_pool_that_keeps_its_memory_changes_no_more_than_on_the_bare_driver(room, whose, sizes):
    space = room.ask("context(); answer(available())")
    program = ROUNDS.replace("SIZES", sizes)
    bare, _ = shim_room.ask_bare(room.machine, program, "", whose, space)
    changes, held = room.ask(program, "", whose, space)
    assert held * MIB > space - 192 * MIB
    assert changes <= bare + 2


def test_memory_freed_on_one_stream_is_for_another_that_waits_for_it(room, whose):
    """The second stream waits on the device, and the program does not."""
    answer = room.ask(
        PRESSURE
        + """
context()
pool, one, other, event = the_pool(), stream(), stream(), P()
keep_all(pool)
check(cuda.cuEventCreate(byref(event), 2))
answers = []
check(request(pool, 1 * MIB, other)[0])
result, pointer = request(pool, 1 * GIB, one)
answers.append(result)
for turn in range(4):
    gate = Gate(one)
    check(free_async(pointer, one))
    check(cuda.cuEventRecord(event, one))
    check(cuda.cuStreamWaitEvent(other, event, 0))
    result, pointer = request(pool, 1 * GIB, other)
    answers += [result, not gate.opened.is_set()]
    gate.opened.set()
    one, other = other, one
check(cuda.cuCtxSynchronize())
answer([answers, holds(pool) // MIB])
""",
        "",
        whose,
    )
    answers, held = answer
    assert answers == [0] + [0, True] * 4
    assert held <= 1088


# Threads with streams of their own that allocate, free and pass on blocks of all sizes.
CHURN = (
    PRESSURE
    + """
import random
made = context()
pools = [the_pool(), own_pool()]
for pool in pools:
    keep_all(pool)
handed, lock = [], threading.Lock()
def churn(seed):
    draw, live = random.Random(seed), []
    check(cuda.cuCtxSetCurrent(made))
    on, event = stream(), P()
    check(cuda.cuEventCreate(byref(event), 2))
    for _ in range(ROUNDS):
        what = draw.random()
        if what < 0.5:
            size = draw.choice([512, 1 * MIB, 33 * MIB, draw.randrange(1, 300 * MIB)])
            pointer = U64()
            if draw.random() < 0.5:
                result = alloc_async(byref(pointer), SIZE(size), on)
            else:
                result = cuda.cuMemAllocFromPoolAsync(byref(pointer), SIZE(size), pools[1], on)
            if result == 0:
                live.append(pointer)
            elif result != 2:
                check(result)
        elif what < 0.9 and live:
            check(free_async(live.pop(draw.randrange(len(live))), on))
        elif what < 0.95 and live:
            check(cuda.cuStreamSynchronize(on))
            with lock:
                handed.append(live.pop())
        elif handed:
            with lock:
                pointer = handed.pop() if handed else None
            if pointer:
                check(free_async(pointer, on))
        if what > 0.97:
            check(cuda.cuStreamSynchronize(on))
        if what > 0.995:
            check(cuda.cuMemPoolTrimTo(pools[1], SIZE(0)))
    check(cuda.cuStreamSynchronize(on))
answer("ready"); sys.stdin.readline()
threads = [threading.Thread(target=churn, args=(int(sys.argv[3]) * 10 + n,)) for n in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
answer("done")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("pools", simulator.POOLS)
def test_threads_and_processes_never_hold_more_than_the_quota(make_room, tmp_path, pools):
    machine = simulator.open_machine("h100", root=tmp_path / "machines", pools=pools)
    room = make_room(machine, vmemory=4 * GIB)
    driver_memory.watch(machine)
    programs = [room.start(CHURN.replace("ROUNDS", "2500"), "", "default", n) for n in range(2)]
    for program in programs:
        assert program.stdout.readline() == '"ready"\n'
    for program in programs:
        print(file=program.stdin, flush=True)
    assert [program.communicate()[0] for program in programs] == ['"done"\n'] * 2
    assert 3 * GIB < driver_memory.peak_bytes(machine) <= 4 * GIB
