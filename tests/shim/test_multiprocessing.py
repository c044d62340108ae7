"""Python's multiprocessing: the behaviour of workers, and the memory they leave.

Each program gives the same output on the bare driver as under the shim, sums included; and the
machine's own record shows whether its device ever exceeded the quota.
"""

import driver_memory
import pytest
from shim_room import GIB, MIB, PRELUDE, ask_bare

pytestmark = pytest.mark.slow

# A worker's functions must be in a module, so that a spawned process can import them.
WORKERS = """
import random
def hold(size, pipe):
    made = P()
    pipe.send([cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(byref(made), 0),
               cuda.cuCtxSetCurrent(made), alloc(size)[0]])
    pipe.recv()
def take_ordered(size):
    pointer = U64()
    return cuda.cuMemAllocAsync(byref(pointer), SIZE(size), None), pointer
def free_ordered(pointer):
    return cuda.cuMemFreeAsync(pointer, None)
FAMILIES = (alloc, free), (take_ordered, free_ordered)
def churn(place, seed, rounds, refused):
    made, held = P(), []
    random.seed(seed)
    check(cuda.cuInit(0))
    while cuda.cuDevicePrimaryCtxRetain(byref(made), 0) == 2:
        refused[place] += 1
        time.sleep(0.01)
    check(cuda.cuCtxSetCurrent(made))
    while True:
        take, give = random.choice(FAMILIES)
        if held and random.random() < 0.45:
            give, pointer = held.pop(random.randrange(len(held)))
            check(give(pointer))
        else:
            result, pointer = take(random.choice([1, 300_000, 3 * MIB, GIB // 2, 2 * GIB]))
            if result == 0:
                held.append((give, pointer))
            elif result == 2:
                refused[place] += 1
            else:
                raise SystemExit(f"CUDA error {result}")
        free_bytes, total = info()
        if not 0 <= free_bytes <= total:
            raise SystemExit(f"{free_bytes} free of {total}")
        rounds[place] += 1
        time.sleep(0.001)
"""

PARENT = """
import multiprocessing, signal, subprocess
sys.path.insert(0, sys.argv[1])
import workers
def until(is_so, seconds):
    end = time.monotonic() + seconds
    late = False
    while not is_so():
        if late:
            return False
        time.sleep(0.002)
        late = time.monotonic() > end
    return True
"""


@pytest.fixture
def workers(tmp_path):
    """Return the folder in which a program finds the module of its workers."""
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "workers.py").write_text(PRELUDE + WORKERS)
    return folder


FOUR_WORKERS = (
    PARENT
    + """
make = multiprocessing.get_context(sys.argv[2])
started = []
def start():
    for n in range(4):
        here, there = make.Pipe()
        worker = make.Process(target=workers.hold, args=((n + 1) * 10 * MIB, there))
        worker.start()
        there.close()
        started.append((worker, here))
if sys.argv[3] == "before":
    start()
context()
check(alloc(100 * MIB)[0])
before = available()
if sys.argv[3] == "after":
    start()
met = [pipe.recv() for _, pipe in started]
during = available()
for worker, pipe in started:
    pipe.send(None)
    worker.join()
alone = int(sys.argv[4]) - 100 * MIB
until(lambda: available() == alone, 1)
answer([met, [worker.exitcode for worker, _ in started], alone - during, alone - available()])
"""
)


@pytest.mark.parametrize(
    ("method", "parent", "meets"),
    [
        pytest.param("fork", "after", 3, id="forked by a user of CUDA"),
        pytest.param("fork", "before", 0, id="forked before their parent uses CUDA"),
        pytest.param("spawn", "after", 0, id="spawned"),
        pytest.param("forkserver", "after", 0, id="forked by a server"),
    ],
)
def test_workers_are_charged_for_what_the_driver_gives_them(
    make_room, machine, workers, method, parent, meets
):
    driver_memory.watch(machine)
    room = make_room(machine, vmemory=4 * GIB)
    free = room.ask("context(); answer(available())")
    answer = room.ask(FOUR_WORKERS, workers, method, parent, free)
    taken = 0 if meets else 4 * room.reserve + 100 * MIB
    assert answer == [[[meets] * 4] * 4, [0] * 4, taken, 0]
    assert driver_memory.peak_bytes(machine) <= 4 * GIB
    bare = ask_bare(machine, "context(); answer(available())")
    assert ask_bare(machine, FOUR_WORKERS, workers, method, parent, bare) == answer


POOL = (
    PARENT
    + """
PLACES, DEATHS = 32, 64
make = multiprocessing.get_context("fork")
rounds, refused = make.RawArray("Q", PLACES), make.RawArray("Q", PLACES)
def start(place, seed):
    worker = make.Process(target=workers.churn, args=(place, seed, rounds, refused))
    worker.start()
    return worker
def get_on(place, by):
    goal = rounds[place] + by
    if not until(lambda: rounds[place] >= goal or pool[place].exitcode is not None, 60):
        raise SystemExit(f"worker {place} hangs")
def kill(place):
    pool[place].kill()
    pool[place].join()
    if pool[place].exitcode != -signal.SIGKILL:
        raise SystemExit(f"worker {place} had ended with {pool[place].exitcode}")
chance = workers.random.Random(1)
pool = [start(place, place) for place in range(PLACES)]
for death in range(DEATHS):
    place = chance.randrange(PLACES)
    get_on(place, chance.randrange(4))
    kill(place)
    pool[place] = start(place, 100 + death)
for place in range(PLACES):
    get_on(place, 1)
for place in range(PLACES):
    kill(place)
context()
answer([sum(refused), until(lambda: alloc(int(sys.argv[2]))[0] == 0, 1)])
"""
)


def test_thirty_two_workers_are_killed_and_replaced_and_nothing_is_lost(
    make_room, machine, workers
):
    driver_memory.watch(machine)
    quota = 32 * machine.devices[0].context_bytes + 4 * GIB
    room = make_room(machine, vmemory=quota)
    refused, is_whole = room.ask(POOL, workers, quota - room.reserve)
    assert is_whole
    assert refused > 0
    assert quota - GIB < driver_memory.peak_bytes(machine) <= quota


# How a child comes to run another program, its answer in *out*.
FORK_AND_EXEC = """
def start(arguments, out):
    child = os.fork()
    if child == 0:
        met = [cuda.cuInit(0), alloc(4096)[0], cuda.cuCtxSynchronize(),
               cuda.cuMemGetInfo_v2(byref(SIZE()), byref(SIZE()))]
        os.dup2(out, 1)
        os.execv(sys.executable, [*arguments, json.dumps(met)])
    return child
"""
SUBPROCESS = """
started = []  # whose end is waited for here alone
def start(arguments, out):  # by vfork
    started.append(subprocess.Popen([*arguments, "[]"], stdout=out))
    return started[-1].pid
"""
POSIX_SPAWN = """
def start(arguments, out):
    return os.posix_spawn(sys.executable, [*arguments, "[]"], os.environ,
                          file_actions=[(os.POSIX_SPAWN_DUP2, out, 1)])
"""
OTHER_PROGRAM = """
context()
free_bytes = available()
answer([json.loads(sys.argv[1]), alloc(64 * MIB)[0], free_bytes])
"""
IN_THE_MIDST = """
def other():
    reader, writer = os.pipe()
    child = start([sys.executable, "-c", sys.argv[2]], writer)
    os.close(writer)
    with open(reader) as said:
        return [*json.load(said), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
primary = context()
before = available()
_, kept = alloc(32 * MIB)
stop, failures, turns = threading.Event(), [], [0] * 3
def work(n):
    cuda.cuCtxSetCurrent(primary)
    while not stop.is_set():
        result, pointer = alloc((n + 1) * MIB)
        failures.extend(each for each in (result or free(pointer),) if each)
        turns[n] += 1
threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
for thread in threads: thread.start()
met = [other()[:2] for _ in range(10)]
if not until(lambda: all(turns), 60):
    raise SystemExit("threads hang")
stop.set()
for thread in threads: thread.join()
# The other program sees what this one has, and nothing of those before it.
seen = until(lambda: other()[2] == before - 32 * MIB - int(sys.argv[3]), 1)
check(free(kept))
until(lambda: available() == before, 1)
answer([met, failures, seen, before - available()])
"""


@pytest.mark.parametrize(
    ("start", "met"),
    [
        pytest.param(FORK_AND_EXEC, [3, 3, 3, 3], id="fork and exec"),
        pytest.param(SUBPROCESS, [], id="subprocess"),
        pytest.param(POSIX_SPAWN, [], id="posix_spawn"),
    ],
)
def test_programs_are_started_in_the_midst_of_use(room, machine, workers, start, met):
    driver_memory.watch(machine)
    source, other = PARENT + start + IN_THE_MIDST, PRELUDE + OTHER_PROGRAM
    answer = room.ask(source, workers, other, room.reserve)
    assert answer == [[[met, 0]] * 10, [], True, 0]
    assert driver_memory.peak_bytes(machine) <= 2 * GIB
    assert ask_bare(machine, source, workers, other, room.reserve) == answer


def test_threads_have_contexts_of_their_own_or_none(make_room, machine):
    driver_memory.watch(machine)
    room = make_room(machine, vmemory=4 * GIB)
    source = """
check(cuda.cuInit(0))
primary = context()
before = available()
contexts = [P() for _ in range(3)]
for each in contexts:
    check(cuda.cuCtxCreate_v2(byref(each), UINT(0), 0))
check(cuda.cuCtxSetCurrent(primary))
met = [set() for _ in range(6)]
class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", INT), ("handles", INT), ("place", INT), ("id", INT), ("rest", U64 * 2)]
def work(n):
    current = contexts[n] if n < 3 else None
    check(cuda.cuCtxSetCurrent(current))
    for turn in range(100):
        result, pointer = alloc((n + 1) * MIB)
        handle, physical = U64(), Properties(type=1, place=1)
        created = cuda.cuMemCreate(byref(handle), SIZE(2 * MIB), byref(physical), U64(0))
        met[n].add((result, cuda.cuMemGetInfo_v2(byref(SIZE()), byref(SIZE())), created,
                    cuda.cuMemRelease(handle), cuda.cuCtxSynchronize(),
                    0 if current and turn % 10 == 0 else free(pointer)))
threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
left = before - available()
ends = []  # of each context by a thread that does not have it
thread = threading.Thread(
    target=lambda: ends.extend(cuda.cuCtxDestroy_v2(each) for each in contexts))
thread.start(), thread.join()
answer([[sorted(each) for each in met], left, ends, before - available()])
"""
    answer = room.ask(source)
    alone = [[201, 201, 0, 0, 201, 201]]
    left = 3 * room.reserve + 10 * (2 + 2 + 4) * MIB
    assert answer == [[[[0] * 6]] * 3 + [alone] * 3, left, [0] * 3, 0]
    assert driver_memory.peak_bytes(machine) <= 4 * GIB
    assert ask_bare(machine, source) == answer
