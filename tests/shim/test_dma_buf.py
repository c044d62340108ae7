"""Memory exported as a dma-buf: charged until it is freed and no process has the dma-buf.

The driver keeps the memory of a dma-buf until its last descriptor is closed, in whichever process,
also one that does not use CUDA. The simulated driver does so, too: in each order of events the
ledger and the machine's own account agree.
"""

import socket

import driver_memory
import pytest
from parties import DESCRIPTORS, IPC, QUOTA, Party, held_at_last, parties
from shim_room import MIB

from pyvgpu.simulation import simulator

SIZE = 256 * MIB
OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801

DMA_BUF = (
    "import signal, subprocess\n"
    + IPC.replace("close(", "shut(")
    + DESCRIPTORS
    + """
def take_memory(size):
    result, pointer = alloc(size)
    return [result, pointer.value]
def give_back(pointer):
    return free(U64(pointer))
def dma_buf(address, size):
    fd = INT(-1)
    result = cuda.cuMemGetHandleForAddressRange(
        byref(fd), U64(address), SIZE(size), 1, U64(0))
    return [result, fd.value]
def race():  # four threads, each of which closes before it frees, or after
    def work():
        check(cuda.cuCtxSetCurrent(current))
        for turn in range(50):
            (result, address), size = take_memory(4 * MIB), 4 * MIB
            check(result)
            result, buffer = dma_buf(address, size)
            check(result)
            steps = [lambda: close(buffer), lambda: check(give_back(address))]
            for step in steps if turn % 2 else steps[::-1]:
                step()
    current = P()
    check(cuda.cuCtxGetCurrent(byref(current)))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
def sleeper(descriptor):  # a program without CUDA that has it
    return subprocess.Popen(["sleep", "600"], pass_fds=[descriptor]).pid
def child():  # forked, with a copy of every descriptor
    made = os.fork()
    if not made:
        signal.pause()
    return made
def end(pid):
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""
)


@pytest.fixture
def room(make_room, machine):
    driver_memory.watch(machine)
    return make_room(machine, vmemory=QUOTA)


@pytest.fixture
def both(room, machine):
    """Return a function: the bytes charged beyond contexts, which are also in use."""

    def read(party: Party, expected: int, contexts: int = 1) -> int:
        charged = held_at_last(party, room, expected, contexts)
        assert driver_memory.used_bytes(machine) == charged + contexts * room.reserve
        assert driver_memory.peak_bytes(machine) <= QUOTA
        return charged

    return read


@pytest.fixture
def owner(room, post):
    """Return a process under the quota, in the folder of the sockets that *post* uses."""
    del post
    with parties(room, source=DMA_BUF) as (party,):
        yield party


@pytest.fixture
def exported(owner):
    """Return the address and the dma-buf of SIZE bytes of the owner."""
    address = owner.get(f"take_memory({SIZE})")
    return address, owner.get(f"dma_buf({address}, {SIZE})")


def test_memory_that_is_freed_stays_charged_until_its_dma_buf_is_closed(owner, exported, both):
    address, buffer = exported
    assert both(owner, SIZE) == SIZE
    assert owner.ask(f"give_back({address})") == 0
    assert both(owner, SIZE) == SIZE
    owner.ask(f"close({buffer})")
    assert both(owner, 0) == 0


def test_memory_whose_dma_buf_is_closed_is_refunded_by_its_free(owner, exported, both, room):
    address, buffer = exported
    owner.ask(f"close({buffer})")
    assert both(owner, SIZE) == SIZE
    assert owner.ask(f"give_back({address})") == 0
    assert sum(slot.charged[0] for slot in room.usage().slots) == room.reserve
    assert both(owner, 0) == 0


def test_a_dma_buf_of_another_container_keeps_nothing_charged(
    owner, exported, both, make_room, tmp_path
):
    """Their memory has the same IPC handle, and the kernel lists the locks of both."""
    address, buffer = exported
    twin = simulator.open_machine("h100", tmp_path / "twin")
    driver_memory.watch(twin)  # by a process, as on the other machine
    with parties(make_room(twin, vmemory=QUOTA), source=DMA_BUF) as (other,):
        other.get(f"dma_buf({other.get(f'take_memory({SIZE})')}, {SIZE})")
        owner.ask(f"close({buffer})")
        assert owner.ask(f"give_back({address})") == 0
        assert both(owner, 0) == 0


def test_each_copy_of_a_descriptor_keeps_the_memory_charged(owner, exported, both):
    address, buffer = exported
    copies = [buffer, owner.ask(f"os.dup({buffer})"), owner.ask(f"os.dup({buffer})")]
    assert owner.ask(f"give_back({address})") == 0
    for copy in copies:
        assert both(owner, SIZE) == SIZE
        owner.ask(f"close({copy})")
    assert both(owner, 0) == 0


def test_two_dma_bufs_of_the_same_memory_are_one_charge(owner, exported, both):
    address, buffer = exported
    part = owner.get(f"dma_buf({address} + {4 * MIB}, 4096)")
    assert both(owner, SIZE) == SIZE
    owner.ask(f"close({buffer})")
    assert owner.ask(f"give_back({address})") == 0
    assert both(owner, SIZE) == SIZE
    owner.ask(f"close({part})")
    assert both(owner, 0) == 0


def test_a_dma_buf_in_another_process_keeps_the_memory_charged(owner, exported, both, room, post):
    address, buffer = exported
    with parties(room, source=DMA_BUF) as (other,):
        there = post(owner, other, buffer)
        assert owner.ask(f"give_back({address})") == 0
        assert both(owner, SIZE, 2) == SIZE
        other.ask(f"close({there})")
        assert both(owner, 0, 2) == 0


def test_a_forked_child_keeps_the_memory_charged(owner, exported, both):
    address, buffer = exported
    child = owner.ask("child()")
    owner.ask(f"close({buffer})")
    assert owner.ask(f"give_back({address})") == 0
    assert both(owner, SIZE) == SIZE
    owner.ask(f"end({child})")
    assert both(owner, 0) == 0


def test_a_program_without_cuda_keeps_the_memory_charged(owner, exported, both):
    address, buffer = exported
    sleeper = owner.ask(f"sleeper({buffer})")
    owner.ask(f"close({buffer})")
    assert owner.ask(f"give_back({address})") == 0
    assert both(owner, SIZE) == SIZE
    owner.ask(f"end({sleeper})")
    assert both(owner, 0) == 0


@pytest.mark.parametrize("freed", [True, False], ids=["freed before", "not freed"])
def test_a_dma_buf_outlives_a_killed_owner_in_another_process(room, both, post, freed):
    with parties(room, room, source=DMA_BUF) as (owner, other):
        address = owner.get(f"take_memory({SIZE})")
        there = post(owner, other, owner.get(f"dma_buf({address}, {SIZE})"))
        if freed:
            assert owner.ask(f"give_back({address})") == 0
        owner.get(f"take_memory({2 * SIZE})")
        owner.kill()
        assert both(other, SIZE) == SIZE
        other.ask(f"close({there})")
        assert both(other, 0) == 0


def test_a_dma_buf_of_a_killed_owner_ends_with_it(owner, exported, both, room):
    del exported
    with parties(room, source=DMA_BUF) as (witness,):
        owner.kill()
        assert both(witness, 0) == 0


def test_a_killed_owner_and_its_child_leave_nothing(owner, exported, both, room):
    del exported
    child = owner.ask("child()")
    with parties(room, source=DMA_BUF) as (witness,):
        owner.kill()
        assert held_at_last(witness, room, SIZE, 2) == SIZE  # the child keeps the context, too
        assert driver_memory.used_bytes(room.machine) == SIZE + 2 * room.reserve
        witness.ask(f"os.kill({child}, 9)")
        assert both(witness, 0) == 0


def test_a_dma_buf_outlives_all_processes_of_the_container(
    room, machine, both, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as queue:
        queue.bind("queue")
        with parties(room, source=DMA_BUF) as (owner,):
            address = owner.get(f"take_memory({SIZE})")
            owner.ask(f"send('queue', {owner.get(f'dma_buf({address}, {SIZE})')})")
        assert driver_memory.left_bytes(machine) == SIZE
        for _ in range(2):
            with parties(room, source=DMA_BUF) as (witness,):
                assert both(witness, SIZE) == SIZE
                assert witness.ask("take_memory(available() + 1)")[0] == OUT_OF_MEMORY
                witness.get("take_memory(available() // (2 * MIB) * 2 * MIB)")
                assert driver_memory.used_bytes(machine) <= QUOTA
    with parties(room, source=DMA_BUF) as (witness,):
        assert both(witness, 0) == 0


def test_dma_bufs_that_are_never_closed_bring_no_device_over_the_quota(owner, machine):
    results = []
    for _ in range(QUOTA // SIZE):
        result, address = owner.ask(f"take_memory({SIZE})")
        results.append(result)
        if result == 0:
            owner.get(f"dma_buf({address}, {SIZE})")
            assert owner.ask(f"give_back({address})") == 0
    assert set(results) == {0, OUT_OF_MEMORY}
    assert driver_memory.peak_bytes(machine) <= QUOTA


def test_dma_bufs_that_are_closed_are_refunded_before_a_refusal(owner, machine):
    for _ in range(3 * QUOTA // SIZE):
        address = owner.get(f"take_memory({SIZE})")
        buffer = owner.get(f"dma_buf({address}, {SIZE})")
        assert owner.ask(f"[give_back({address}), close({buffer})]") == [0, None]
    assert driver_memory.peak_bytes(machine) <= QUOTA


@pytest.mark.parametrize("kind", ["0", "FILE"], ids=["private", "exportable"])
@pytest.mark.parametrize("first", ["unmap", "release"])
def test_a_dma_buf_keeps_all_memory_that_was_mapped_to_its_range(owner, both, kind, first):
    handles = [owner.get(f"make({SIZE}, {kind})") for _ in range(3)]
    base = owner.ask(f"reserve({3 * SIZE})")
    for i, handle in enumerate(handles):
        assert owner.ask(f"map({base + i * SIZE}, {SIZE}, U64({handle}))") == 0
    buffer = owner.get(f"dma_buf({base + SIZE}, {SIZE + 4096})")  # two of them
    steps = [f"unmap({base}, {3 * SIZE})", f"[drop(handle) for handle in {handles}]"]
    for step in steps if first == "unmap" else steps[::-1]:
        assert both(owner, 3 * SIZE) == 3 * SIZE
        assert owner.ask(step) in (0, [0, 0, 0])
    assert both(owner, 2 * SIZE) == 2 * SIZE
    owner.ask(f"close({buffer})")
    assert both(owner, 0) == 0


def test_a_dma_buf_and_an_importer_each_keep_the_memory_charged(owner, both, room, post):
    with parties(room, source=DMA_BUF) as (user,):
        made = owner.get(f"make({SIZE})")
        descriptor = post(owner, user, owner.get(f"export({made})"))
        there = user.get(f"take({descriptor})")
        user.ask(f"close({descriptor})")
        address = user.get(f"show({there}, {SIZE})")
        buffer = user.get(f"dma_buf({address}, {SIZE})")
        assert owner.ask(f"drop({made})") == 0
        assert both(owner, SIZE, 2) == SIZE
        assert user.ask(f"[unmap({address}, {SIZE}), drop({there})]") == [0, 0]
        assert both(owner, SIZE, 2) == SIZE
        user.ask(f"close({buffer})")
        assert both(owner, 0, 2) == 0


@pytest.mark.parametrize("first", ["IPC handle", "dma-buf"])
def test_memory_with_an_ipc_handle_and_a_dma_buf_is_charged_once(owner, both, room, first):
    with parties(room, source=DMA_BUF) as (user,):
        address = owner.get(f"take_memory({SIZE})")
        calls = [f"give({address})", f"dma_buf({address}, {SIZE})"]
        order = slice(None, None, 1 if first == "IPC handle" else -1)
        handle, buffer = [owner.get(call) for call in calls[order]][order]
        there = user.get(f"open_({handle!r})")
        assert both(owner, SIZE, 2) == SIZE
        assert owner.ask(f"give_back({address})") == 0
        owner.ask(f"close({buffer})")
        assert both(owner, SIZE, 2) == SIZE
        assert user.ask(f"shut({there})") == 0
        assert both(owner, 0, 2) == 0


@pytest.mark.parametrize(
    ("free", "contexts"),
    [
        pytest.param("cuda.cuMemFreeAsync(U64({}), None), cuda.cuCtxSynchronize()", 1, id="async"),
        pytest.param("cuda.cuDevicePrimaryCtxReset_v2(0),", 0, id="reset"),
    ],
)
def test_memory_that_is_freed_otherwise_stays_charged(owner, exported, room, both, free, contexts):
    address, buffer = exported
    assert set(owner.ask(free.format(address))) == {0}
    assert room.usage().charged[0] == SIZE + contexts * room.reserve
    owner.ask(f"close({buffer})")
    owner.ask("context() and None")
    assert both(owner, 0) == 0


def test_a_program_that_execs_keeps_the_memory_charged(owner, exported, both, room):
    _, buffer = exported
    with parties(room, source=DMA_BUF) as (witness,):
        owner.process.stdin.write(
            f"[os.set_inheritable({buffer}, True), os.execvp('sleep', ['sleep', '600'])]\n"
        )
        owner.process.stdin.flush()
        assert both(witness, SIZE) == SIZE
        owner.kill()
        assert both(witness, 0) == 0


def test_threads_that_export_and_free_leave_nothing_charged(owner, both, machine):
    owner.ask("race()")
    assert both(owner, 0) == 0
    assert driver_memory.left_bytes(machine) == 0


def test_a_device_without_dma_bufs_is_left_as_it_is(make_room, tmp_path):
    machine = simulator.open_machine(
        "h100", root=tmp_path / "machines", law=simulator.Law(dma_buf=False)
    )
    with parties(make_room(machine, vmemory=QUOTA), source=DMA_BUF) as (owner,):
        address = owner.get(f"take_memory({SIZE})")
        assert owner.ask(f"dma_buf({address}, {SIZE})") == [NOT_SUPPORTED, -1]
