"""Memory shared by IPC handles: charged once, to its owner, while any process has it open."""

import driver_memory
import pytest
from parties import QUOTA, held, held_at_last, opened, parties
from shim_room import GIB, MIB, ask_bare

from pyvgpu.simulation import simulator

SIZE = 512 * MIB


@pytest.fixture
def room(make_room, machine):
    return make_room(machine, vmemory=QUOTA)


def test_an_importer_of_the_same_container_does_not_pay(room):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        assert held(user, room) == SIZE
        assert (opened(owner, room), opened(user, room)) == (0, SIZE)
        assert user.ask(f"close({there})") == 0
        assert held(user, room) == SIZE
        assert opened(user, room) == 0
        assert owner.ask(f"free(U64({address}))") == 0
        assert held(owner, room) == 0


def test_memory_that_its_owner_freed_stays_charged_until_it_is_closed(room):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        assert owner.ask(f"free(U64({address}))") == 0
        assert held(owner, room) == SIZE
        assert user.ask(f"close({there})") == 0
        assert held(owner, room) == 0


def test_a_small_allocation_that_others_have_stays_charged_as_a_block(room):
    with parties(room, room) as (owner, user):
        address = owner.get("take_memory(512)")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        assert owner.ask(f"free(U64({address}))") == 0
        assert held(owner, room) == 2 * MIB
        assert user.ask(f"close({there})") == 0
        assert held(owner, room) == 0


def test_closed_imports_are_reclaimed_before_a_refusal(room):
    with parties(room, room) as (owner, user):
        free = owner.ask("available()")
        address = owner.get(f"take_memory({free})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        assert owner.ask(f"free(U64({address}))") == 0
        assert owner.ask(f"take_memory({MIB})")[0] == 2
        assert user.ask(f"close({there})") == 0
        assert owner.ask(f"take_memory({free})")[0] == 0


@pytest.mark.parametrize("wait", ["cuCtxSynchronize()", "cuStreamSynchronize(None)"])
def test_closed_imports_are_reclaimed_once_the_owner_synchronises(room, wait):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        assert owner.ask(f"free(U64({address}))") == 0
        assert user.ask(f"close({there})") == 0
        assert held(user, room) == SIZE
        assert owner.ask(f"cuda.{wait}") == 0
        assert held(user, room) == 0


def test_a_dead_owner_leaves_its_charge_to_the_container(room):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        owner.get(f"take_memory({64 * MIB})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        owner.kill()
        assert held_at_last(user, room, SIZE) == SIZE
        assert opened(user, room) == SIZE
        everything = QUOTA - room.reserve
        assert user.ask(f"take_memory({everything - SIZE + MIB})")[0] == 2
        assert user.ask(f"take_memory({everything})")[0] == 2
        assert user.ask(f"close({there})") == 0
        assert held_at_last(user, room, 0) == 0
        assert user.get(f"take_memory({everything})")


@pytest.mark.parametrize("first", ["owner", "user"])
def test_no_charge_is_left_after_owner_and_importer_died(room, first):
    with parties(room, room, room) as (owner, user, witness):
        address = owner.get(f"take_memory({SIZE})")
        user.get(f"open_({owner.get(f'give({address})')!r})")
        for party in (owner, user) if first == "owner" else (user, owner):
            assert held(witness, room, 3) >= SIZE - room.reserve
            party.kill()
        assert witness.get(f"take_memory({QUOTA - room.reserve})")


def test_dead_importer_releases_memory_freed_by_its_owner(room):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        user.get(f"open_({owner.get(f'give({address})')!r})")
        assert owner.ask(f"free(U64({address}))") == 0
        user.kill()
        assert owner.get(f"take_memory({QUOTA - room.reserve})")


def test_an_importer_of_another_container_pays_until_it_closes(rooms):
    one, other = rooms
    with parties(one, other) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        handle = owner.get(f"give({address})")
        there = user.get(f"open_({handle!r})")
        assert (held(owner, one, 1), held(user, other, 1)) == (SIZE, SIZE)
        assert user.ask(f"close({there})") == 0
        assert (held(owner, one, 1), held(user, other, 1)) == (SIZE, 0)
        assert user.get(f"open_({handle!r}, cuda.cuIpcOpenMemHandle)")
        assert held(user, other, 1) == SIZE
        owner.kill()
        assert held(user, other, 1) == SIZE


def test_memory_over_an_importers_quota_is_closed_again(make_room, machine):
    one, other = make_room(machine, vmemory=QUOTA), make_room(machine, vmemory=2 * GIB)
    with parties(one, other) as (owner, user):
        address = owner.get(f"take_memory({2 * GIB})")
        handle = owner.get(f"give({address})")
        before = user.ask("available()")
        assert user.ask(f"open_({handle!r})")[0] == 2
        assert user.ask("available()") == before == 2 * GIB - other.reserve
        small = owner.get(f"give({owner.get(f'take_memory({SIZE})')})")
        assert user.get(f"open_({small!r})")


def test_end_of_a_context_closes_its_imports(rooms):
    one, other = rooms
    with parties(one, other) as (owner, user):
        handle = owner.get(f"give({owner.get(f'take_memory({SIZE})')})")
        user.get(f"open_({handle!r})")
        assert held(user, other, 1) == SIZE
        assert user.ask("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
        assert user.ask("context() and available()") == QUOTA - other.reserve
        assert user.get(f"open_({handle!r})")
        assert held(user, other, 1) == SIZE


def test_the_owners_context_ends_and_what_it_shared_stays_charged(room):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        there = user.get(f"open_({owner.get(f'give({address})')!r})")
        assert owner.ask("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
        assert held(user, room, 1) == SIZE
        assert user.ask(f"close({there})") == 0
        assert owner.ask("context() and available()") == QUOTA - 2 * room.reserve


def test_memory_can_be_exported_any_number_of_times(room):
    with parties(room, room) as (owner, user):
        address = owner.get(f"take_memory({SIZE})")
        handles = [owner.get(f"give({at})") for at in (address, address, address + 4096)]
        assert [user.ask(f"open_({each!r})")[0] for each in handles] == [0, 0, 0]
        assert held(user, room) == SIZE
        assert owner.ask(f"free(U64({address}))") == 0
        assert held(user, room) == SIZE
        user.kill()
        assert held_at_last(owner, room, 0) == 0


def test_invalid_handles_get_the_drivers_result(room, machine):
    source = """
source = context()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
_, pointer = alloc(4096)
mine = Handle()
answer([
    cuda.cuIpcGetMemHandle(byref(mine), U64(12345)), cuda.cuIpcGetMemHandle(None, pointer),
    cuda.cuIpcGetMemHandle(byref(mine), pointer),
    cuda.cuIpcOpenMemHandle_v2(byref(U64()), mine, UINT(1)),
    cuda.cuIpcOpenMemHandle_v2(byref(U64()), mine, UINT(7)),
    cuda.cuIpcOpenMemHandle_v2(byref(U64()), Handle(), UINT(1)),
    cuda.cuIpcCloseMemHandle(pointer), cuda.cuIpcCloseMemHandle(U64(0)),
    free(pointer),
])
"""
    assert room.ask(source) == ask_bare(machine, source)


def test_a_driver_that_fails_leaves_no_trace(rooms, machine):
    one, other = rooms
    with parties(one) as (owner,):
        handle = owner.get(f"give({owner.get(f'take_memory({SIZE})')})")
        simulator.set_faults(
            machine, "call cuIpcOpenMemHandle_v2 1 999", "call cuIpcCloseMemHandle 1 700"
        )
        with parties(other) as (user,):
            assert user.ask(f"open_({handle!r})")[0] == 999
            assert held(user, other, 1) == 0
            there = user.get(f"open_({handle!r})")
            assert user.ask(f"close({there})") == 700
            assert held(user, other, 1) == SIZE
            assert user.ask(f"close({there})") == 0
            assert held(user, other, 1) == 0


@pytest.mark.slow
def test_ten_dead_creators_never_bring_the_device_over_the_quota(room, machine):
    with parties(room) as (user,):
        driver_memory.watch(machine)
        opened = []
        for _ in range(10):
            with parties(room) as (owner,):
                # A leftover of an earlier creator may get this one's place.
                result, address = owner.ask(f"take_memory({SIZE // 2})")
                if result == 0:
                    opened.append(user.get(f"open_({owner.get(f'give({address})')!r})"))
                owner.kill()
        assert len(opened) == 10
        left = 10 * SIZE // 2
        assert held_at_last(user, room, left) == left
        assert driver_memory.left_bytes(machine) == left
        user.get(f"take_memory({user.ask('available()')})")
        assert user.ask(f"take_memory({MIB})")[0] == 2
        for address in opened:
            assert user.ask(f"close({address})") == 0
        assert held_at_last(user, room, QUOTA - room.reserve - left) == QUOTA - room.reserve - left
        assert user.get(f"take_memory({left})")
        assert driver_memory.peak_bytes(machine) <= QUOTA
