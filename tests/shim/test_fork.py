"""Forked children keep the memory of a dead parent, in the ledger as in the driver.

The driver frees a process's memory when the last copy of its descriptors is closed, and a child
that was forked has copies until it ends or execs. The simulated machine does so, too (law
fork_keeps), and records the peak usage: memory that the ledger released too early would exceed the
quota there.
"""

import json
import os
import signal

import audits
import driver_memory
import parties
import pytest
from shim_room import GIB, MIB, ask_bare
from waiting import wait_until

from pyvgpu.simulation import simulator

HELD = 512 * MIB
QUOTA = 3 * GIB

# A parent holds memory, has a child, and waits for its end. Children live until the other end of
# their standard input is closed in every process.
PARENT = """
import signal, subprocess
SELF = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
def wait():
    while os.read(0, 1):
        pass
    os._exit(0)
def fork(be=wait):
    child = os.fork()
    if child == 0:
        be()
    return child
def hold():
    context()
    check(alloc(int(sys.argv[1]))[0])
def done(*said):
    answer(said)
    signal.pause()
SHARED_MEMORY, SHARED_DESCRIPTORS, PARENT_WAITS = 0x100, 0x400, 0x4000
def clone(flags):
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    return ctypes.PyDLL(None).syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0)
"""

STAYS = {
    "worker": "hold(); done(fork())",
    "three workers": "hold(); done(*[fork() for _ in range(3)])",
    "multiprocessing": """
import multiprocessing
hold()
queue = multiprocessing.get_context("fork").Queue()
def work():
    queue.put(1)
    wait()
workers = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
for worker in workers: worker.start()
for worker in workers: queue.get()
done(*[worker.pid for worker in workers])
""",
    "double fork": """
def be():
    os.setsid()
    fork()
    os._exit(0)
hold()
os.waitpid(fork(be), 0)
done()
""",
    "descriptors closed": """
def be():
    os.closerange(1, 4096)
    wait()
hold(); done(fork(be))
""",
    "asks CUDA": """
def be():
    met = [cuda.cuInit(0), alloc(4096)[0], cuda.cuInit(0)]
    os.write(writer, json.dumps(met).encode())
    wait()
hold()
reader, writer = os.pipe()
child = fork(be)
met = json.loads(os.read(reader, 100))
if met != [3, 3, 3]:
    raise SystemExit(met)
done(child)
""",
    "forks again": """
def be():
    fork()
    wait()
hold(); done(fork(be))
""",
    "takes more after the fork": """
context()
child = fork()
check(alloc(int(sys.argv[1]))[0])
done(child)
""",
    "threads": """
hold()
stop, failures = threading.Event(), []
def work():
    check(cuda.cuCtxSetCurrent(current))
    while True:
        result, pointer = alloc(2 * MIB)
        failures.extend(each for each in (result or free(pointer),) if each)
current = P()
check(cuda.cuCtxGetCurrent(byref(current)))
for _ in range(3): threading.Thread(target=work, daemon=True).start()
done(*[fork() for _ in range(20)])
""",
    "clone without fork handlers": """
hold()
child = clone(SHARED_DESCRIPTORS)
if child == 0:
    wait()
done(child)
""",
    # The parent is killed in the call. Its child has its memory, and not a copy of it.
    "vfork without exec": """
hold()
clone(SHARED_MEMORY | PARENT_WAITS)
answer([])
wait()
""",
    "parent execs": """
hold()
fork()
os.execv(SELF[0], [*SELF[:3], "import signal; print([], flush=True); signal.pause()"])
""",
    "parent execs, and its child forks": """
def be():
    fork()
    os._exit(0)
hold()
os.waitpid(fork(be), 0)
os.execv(SELF[0], [*SELF[:3], "import signal; print([], flush=True); signal.pause()"])
""",
    "fork by a thread of several, and the main thread ends": """
hold()
def work():
    child = fork()
    while "Z" not in open("/proc/self/task/%d/stat" % os.getpid()).read().rpartition(")")[2]:
        time.sleep(0.001)
    done(child)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
""",
}

GOES = {
    "fork and exec": "hold(); done(fork(lambda: os.execv(SELF[0], SELF)))",
    "vfork and exec": "hold(); done(subprocess.Popen(SELF).pid)",
    "posix_spawn": "hold(); done(os.posix_spawn(SELF[0], SELF, os.environ))",
    "forked before the driver": "child = fork(); hold(); done(child)",
    "double fork and exec": """
def be():
    fork(lambda: os.execv(SELF[0], SELF))
    os._exit(0)
hold()
os.waitpid(fork(be), 0)
done()
""",
}

# The free bytes, whether one byte more is refused, and whether all of them can be allocated.
TAKE = """
context()
free_bytes = available()
answer([free_bytes, alloc(free_bytes + 1)[0], alloc(free_bytes)[0]])
"""


@pytest.fixture
def room(make_room, machine):
    driver_memory.watch(machine)
    return make_room(machine, vmemory=QUOTA)


@pytest.fixture
def leave(room):
    """Return a function that kills a parent and returns its other children's input and pids."""
    inputs = []

    def leave(source):
        parent = room.start(PARENT + source, HELD)
        inputs.append(parent.stdin)
        children = json.loads(parent.stdout.readline())
        parent.stdout.close()
        parent.kill()
        parent.wait()
        return parent.stdin, children

    yield leave
    for each in inputs:
        each.close()


def is_empty(room, machine):
    return not room.usage().slots and driver_memory.used_bytes(machine) == 0


@pytest.mark.slow
@pytest.mark.parametrize("source", STAYS.values(), ids=STAYS.keys())
def test_memory_of_a_dead_parent_is_charged_until_the_last_child_ends(
    room, machine, leave, source
):
    lives, children = leave(source)
    held = driver_memory.used_bytes(machine)
    assert held >= HELD + room.reserve
    assert room.usage().charged[0] >= held
    rest = QUOTA - room.usage().charged[0] - room.reserve
    assert room.ask(TAKE) == [rest, 2, 0]
    for child in children[1:]:
        os.kill(child, signal.SIGKILL)
    assert room.ask(TAKE) == [rest, 2, 0]
    lives.close()
    wait_until(lambda: is_empty(room, machine))
    assert room.ask(TAKE) == [QUOTA - room.reserve, 2, 0]
    assert driver_memory.peak_bytes(machine) <= QUOTA


def test_a_childs_memory_stays_charged_through_audits_and_new_limits(room, machine, leave):
    """Every program that asks also clears dead slots, as after any number of minutes."""
    lives, _ = leave("hold(); done(fork())")
    rest = QUOTA - driver_memory.used_bytes(machine) - room.reserve
    for _ in range(3):
        assert audits.audit(room) == (0, False)
        room.set_vmemory(QUOTA)
        assert room.ask(TAKE) == [rest, 2, 0]
    lives.close()
    wait_until(lambda: is_empty(room, machine))
    assert audits.audit(room) == (0, False)
    assert room.ask(TAKE) == [QUOTA - room.reserve, 2, 0]
    assert driver_memory.peak_bytes(machine) <= QUOTA


EXECS = """
if len(sys.argv) == 2:
    hold()
    answer(fork(signal.pause))
    os.read(0, 1)
    source = open("/proc/self/cmdline").read().split("\\0")[3]
    os.execv(sys.executable, [sys.executable, "-S", "-c", source, sys.argv[1], "again"])
context()
check(alloc(2 * int(sys.argv[1]))[0])
answer("again")
wait()
"""


def test_a_program_that_execs_is_charged_once_by_an_audit(room, machine):
    """Its child keeps its earlier slot, with its pid."""
    held = HELD // 2
    with room.start(PARENT + EXECS, held) as program:
        child = int(program.stdout.readline())

        def exec_again():
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == '"again"\n'

        try:
            assert audits.audit(room, exec_again) == (0, False)
            assert room.usage().charged[0] == 3 * held + 2 * room.reserve
            assert room.ask(TAKE) == [QUOTA - 3 * held - 3 * room.reserve, 2, 0]
        finally:
            os.kill(child, signal.SIGKILL)
            program.kill()
    wait_until(lambda: is_empty(room, machine))


@pytest.mark.slow
@pytest.mark.parametrize("source", GOES.values(), ids=GOES.keys())
def test_a_child_that_has_no_descriptors_of_the_driver_keeps_nothing(room, machine, leave, source):
    _, children = leave(source)
    wait_until(lambda: is_empty(room, machine))
    assert room.ask(TAKE) == [QUOTA - room.reserve, 2, 0]
    assert driver_memory.peak_bytes(machine) <= QUOTA
    for child in children:
        os.kill(child, 0)


def test_a_child_forked_before_the_driver_has_a_slot_of_its_own(room, machine, leave):
    lives, _ = leave("""
def be():
    hold()
    os.write(writer, b"1")
    wait()
reader, writer = os.pipe()
child = fork(be)
os.read(reader, 1)
hold()
done(child)
""")
    wait_until(lambda: len(room.usage().slots) == 1)
    assert room.ask(TAKE) == [QUOTA - HELD - 2 * room.reserve, 2, 0]
    lives.close()
    wait_until(lambda: is_empty(room, machine))


def test_a_child_keeps_the_memory_of_each_device(make_room, tmp_path):
    machine = simulator.open_machine("h100:2", root=tmp_path / "two")
    for device in (0, 1):
        driver_memory.watch(machine, device)
    room = make_room(machine, vmemory=QUOTA, ordinals=(0, 1))
    parent = room.start(
        PARENT
        + """
for device in (0, 1):
    context(device)
    check(alloc(int(sys.argv[1]) * (1 + device))[0])
done(fork())
""",
        HELD,
    )
    assert parent.stdout.readline()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    held = [HELD + room.reserve, 2 * HELD + room.reserve]
    assert [driver_memory.used_bytes(machine, device) for device in (0, 1)] == held
    assert list(room.usage().charged[:2]) == held
    for device in (0, 1):
        rest = QUOTA - held[device] - room.reserve
        take = TAKE.replace("context()", f"context({device})")
        assert room.ask(take) == [rest, 2, 0]
    parent.stdin.close()
    wait_until(lambda: not room.usage().slots)
    for device in (0, 1):
        assert driver_memory.used_bytes(machine, device) == 0
        assert driver_memory.peak_bytes(machine, device) <= QUOTA


@pytest.mark.slow
def test_programs_that_fork_and_exit_in_turn_do_not_take_the_device(room, machine):
    """Each program holds a part of the quota, leaves it to a child, and ends."""
    source = PARENT + "hold(); fork(); answer(0); os._exit(0)"
    ends, codes = [], []
    for _ in range(6):
        program = room.start(source, HELD)
        program.stdout.read(1)
        codes.append(program.wait())
        program.stdout.close()
        ends.append(program.stdin)
    each = HELD + room.reserve
    fit = QUOTA // each
    assert fit < 6
    assert [code == 0 for code in codes] == [True] * fit + [False] * (6 - fit)
    assert driver_memory.used_bytes(machine) == room.usage().charged[0] == fit * each
    for left, end in enumerate(ends):
        wait_until(lambda left=left: len(room.usage().slots) == max(fit - left, 0))
        end.close()
    wait_until(lambda: is_empty(room, machine))
    assert room.ask(TAKE) == [QUOTA - room.reserve, 2, 0]
    assert driver_memory.peak_bytes(machine) <= QUOTA


def test_children_do_not_keep_memory_freed_by_the_parent(room, machine, leave):
    leave("""
context()
_, pointer = alloc(int(sys.argv[1]))
child = fork()
check(free(pointer))
done(child)
""")
    assert room.usage().charged[0] == driver_memory.used_bytes(machine) == room.reserve
    assert room.ask(TAKE) == [QUOTA - 2 * room.reserve, 2, 0]


def test_exited_parent_leaves_at_least_its_childrens_memory_charged(room, machine):
    """The simulated driver releases memory at a regular exit; NVIDIA's may not."""
    parent = room.start(PARENT + "hold(); fork(); answer(0)", HELD)
    assert parent.stdout.readline() == "0\n"
    assert parent.wait() == 0
    assert room.usage().charged[0] == HELD + room.reserve >= driver_memory.used_bytes(machine)
    parent.stdin.close()
    wait_until(lambda: is_empty(room, machine))
    parent.stdout.close()


# Allocates and frees, and forks children that live for a moment or for long.
FAMILY = (
    PARENT
    + """
import random
chance = random.Random(int(sys.argv[2]))
current = P()
check(cuda.cuInit(0))
while cuda.cuDevicePrimaryCtxRetain(byref(current), 0) == 2:
    time.sleep(0.002)
answer(0)
check(cuda.cuCtxSetCurrent(current))
def be():
    time.sleep(chance.random() ** 4 / 4)
    os._exit(0)
def work():
    check(cuda.cuCtxSetCurrent(current))
    held = []
    while True:
        if held and chance.random() < 0.45:
            check(free(held.pop(chance.randrange(len(held)))))
        else:
            result, pointer = alloc(chance.choice([1, 300_000, 3 * MIB, GIB // 4, GIB]))
            if result not in (0, 2):
                os._exit(result)
            if result == 0:
                held.append(pointer)
for _ in range(2): threading.Thread(target=work, daemon=True).start()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    fork(be)
    time.sleep(0.005)
"""
)


@pytest.mark.slow
def test_killed_process_families_never_exceed_the_quota(make_room, machine):
    driver_memory.watch(machine)
    places = 6
    room = make_room(machine, vmemory=places * machine.devices[0].context_bytes + 2 * GIB)
    quota = places * room.reserve + 2 * GIB
    programs = [room.start(FAMILY, HELD, n) for n in range(places)]
    try:
        for death in range(24):
            place = death % places
            assert programs[place].stdout.readline() == "0\n"
            programs[place].kill()
            assert programs[place].wait() == -signal.SIGKILL
            programs[place].communicate()
            programs[place] = room.start(FAMILY, HELD, 100 + death)
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    wait_until(lambda: is_empty(room, machine))
    assert driver_memory.peak_bytes(machine) <= quota
    assert room.ask(TAKE) == [quota - room.reserve, 2, 0]


def test_ledger_is_exact_if_the_driver_keeps_nothing_across_fork(tmp_path, make_room):
    """Such a driver frees at once: the charge may exceed the memory held, but is never less."""
    machine = simulator.open_machine(
        "h100", root=tmp_path / "others", law=simulator.Law(fork_keeps=False)
    )
    driver_memory.watch(machine)
    room = make_room(machine, vmemory=QUOTA)
    parent = room.start(PARENT + STAYS["worker"], HELD)
    parent.stdout.readline()
    parent.kill()
    parent.wait()
    wait_until(lambda: driver_memory.used_bytes(machine) == 0)
    assert room.ask(TAKE) == [QUOTA - HELD - 2 * room.reserve, 2, 0]
    parent.stdin.close()
    wait_until(lambda: is_empty(room, machine))
    parent.stdout.close()


def test_the_simulated_driver_keeps_what_forked_children_may_still_use(machine):
    """The machine's own record without a shim, the reference for the ledger in this file."""
    source = (
        PARENT
        + """
def stay():
    os.close(held)
    os.read(until, 1)
    os._exit(0)
def be():
    hold()
    fork(stay)
    os.write(writer, b"1")
    signal.pause()
until, held = os.pipe()
reader, writer = os.pipe()
parent = fork(be)
os.read(reader, 1)
os.kill(parent, 9)
os.waitpid(parent, 0)
context()
answer(info()[1] - info()[0])
"""
    )
    assert ask_bare(machine, source, HELD) >= HELD + 2 * machine.devices[0].context_bytes


@pytest.fixture
def shared(make_room, machine):
    driver_memory.watch(machine)
    yield make_room(machine, vmemory=parties.QUOTA)
    assert driver_memory.peak_bytes(machine) <= parties.QUOTA


def test_child_keeps_open_the_imports_of_its_dead_parent(shared):
    source = parties.LIVES + parties.IPC
    with parties.parties(shared, shared, source=source) as (owner, user):
        address = owner.get(f"take_memory({HELD})")
        user.get(f"open_({owner.get(f'give({address})')!r})")
        child = user.ask("lives()")
        try:
            user.kill()
            assert owner.ask(f"free(U64({address}))") == 0
            assert parties.held(owner, shared) == HELD
            rest = owner.ask("available()")
            assert owner.ask(f"take_memory({rest + MIB})")[0] == 2
        finally:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: parties.held(owner, shared, 1) == 0)
        owner.get(f"take_memory({parties.QUOTA - shared.reserve})")


def test_child_keeps_a_dead_parents_export_until_it_is_imported(shared):
    source = parties.LIVES + parties.IPC
    with parties.parties(shared, shared, source=source) as (owner, user):
        address = owner.get(f"take_memory({HELD})")
        owner.get(f"take_memory({64 * MIB})")
        handle = owner.get(f"give({address})")
        child = owner.ask("lives()")
        try:
            owner.kill()
            there = user.get(f"open_({handle!r})")
            assert parties.held(user, shared) == HELD + 64 * MIB
        finally:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: parties.held(user, shared, 1) == HELD)
        assert user.ask(f"close({there})") == 0
        wait_until(lambda: parties.held(user, shared, 1) == 0)
        user.get(f"take_memory({parties.QUOTA - shared.reserve})")


def test_import_closed_by_a_process_is_closed_for_its_children(shared):
    """Closing an import ends it even if children have copies of the driver's descriptors."""
    source = parties.LIVES + parties.IPC
    with parties.parties(shared, shared, source=source) as (owner, user):
        address = owner.get(f"take_memory({HELD})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        child = user.ask("lives()")
        try:
            assert user.ask(f"close({there})") == 0
            assert owner.ask(f"free(U64({address}))") == 0
            assert parties.held(owner, shared) == 0
            owner.get(f"take_memory({parties.QUOTA - 2 * shared.reserve})")
            assert driver_memory.used_bytes(shared.machine) == parties.QUOTA
        finally:
            os.kill(child, signal.SIGKILL)
