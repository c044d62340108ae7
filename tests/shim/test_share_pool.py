"""Exported pools: charged to their creator, whichever process has a block open."""

import os
import signal

import driver_memory
import parties as sharing
import pytest
from parties import LIVES, POOLS, QUOTA, held, held_at_last, parties
from shim_room import GIB, MIB

SIZE = 256 * MIB


@pytest.fixture
def room(make_room, machine):
    return make_room(machine, vmemory=QUOTA)


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """Return a function: one party imports another's pool; both handles, and the descriptor."""
    monkeypatch.chdir(tmp_path)  # paths of sockets are short

    def do(owner, user):
        pool = owner.get("make_pool()")
        user.ask("expect('box')")
        owner.ask(f"send('box', {owner.get(f'export_pool({pool})')})")
        descriptor = user.ask("receive()")
        return pool, user.get(f"take_pool({descriptor})"), descriptor

    return do


@pytest.fixture
def opened(taken):
    """Return a function: one party opens a block of SIZE of another's pool; pool and address."""

    def do(owner, user):
        pool, there, descriptor = taken(owner, user)
        user.ask(f"close({descriptor})")
        block = owner.get(f"block({pool}, {SIZE})")
        return pool, user.get(f"open_block({there}, {owner.get(f'give({block})')!r})")

    return do


def test_an_importer_of_the_same_container_does_not_pay(room, opened):
    with parties(room, room, source=POOLS) as (owner, user):
        _, there = opened(owner, user)
        assert held(user, room) == SIZE
        assert sharing.opened(user, room) == SIZE
        assert user.ask(f"free(U64({there}))") == 0
        assert held(user, room) == SIZE


def test_an_importer_of_another_container_pays_until_it_frees(rooms, opened):
    one, other = rooms
    with parties(one, other, source=POOLS) as (owner, user):
        _, there = opened(owner, user)
        assert (held(owner, one, 1), held(user, other, 1)) == (SIZE, SIZE)
        assert user.ask(f"cuda.cuMemFreeAsync(U64({there}), None)") == 0
        assert user.ask("cuda.cuCtxSynchronize()") == 0
        assert held(user, other, 1) == 0
        assert held(owner, one, 1) == SIZE


def test_memory_of_a_dead_owners_pool_stays_charged(room, opened):
    with parties(room, room, source=POOLS) as (owner, user):
        opened(owner, user)
        owner.kill()
        assert held_at_last(user, room, SIZE) == SIZE
        user.kill()
        with parties(room, source=POOLS) as (witness,):
            assert held_at_last(witness, room, 0) == 0


@pytest.mark.parametrize("last", ["pool", "block", "descriptor"])
def test_dead_owners_pool_is_charged_until_the_last_importer_ends(room, taken, last, machine):
    with parties(room, room, source=POOLS) as (owner, user):
        pool, there, descriptor = taken(owner, user)
        block = owner.get(f"block({pool}, {SIZE})")
        address = user.get(f"open_block({there}, {owner.get(f'give({block})')!r})")
        owner.kill()
        ends = {
            "pool": f"destroy_pool({there})",
            "block": f"free(U64({address}))",
            "descriptor": f"close({descriptor})",
        }
        for end in [*(set(ends) - {last}), last]:
            assert held_at_last(user, room, SIZE) == SIZE
            assert user.ask(ends[end]) in (0, None)
        assert held_at_last(user, room, 0) == 0
        assert driver_memory.left_bytes(machine) == 0


def test_a_pool_that_grew_after_it_was_exported_stays_charged_as_it_is(room, opened):
    with parties(room, room, source=POOLS) as (owner, user):
        pool, _ = opened(owner, user)
        owner.get(f"block({pool}, {2 * SIZE})")
        owner.kill()
        assert held_at_last(user, room, 3 * SIZE) == 3 * SIZE


def test_memory_over_an_importers_quota_is_not_opened(make_room, machine, opened):
    one, other = make_room(machine, vmemory=QUOTA), make_room(machine, vmemory=1 * GIB)
    with parties(one, other, source=POOLS) as (owner, user):
        left = 1 * GIB - other.reserve
        own = user.get(f"make({left - SIZE + 2 * MIB})")
        with pytest.raises(AssertionError, match="open_block.*: 2"):
            opened(owner, user)
        assert user.ask("available()") == SIZE - 2 * MIB
        assert user.ask(f"drop({own})") == 0


def test_a_child_keeps_what_its_dead_parent_had_opened(room, opened, machine):
    driver_memory.watch(machine)
    with parties(room, room, source=LIVES + POOLS) as (owner, user):
        opened(owner, user)
        child = user.ask("lives()")
        try:
            user.kill()
            owner.kill()
            with parties(room, source=POOLS) as (witness,):
                contexts = 2  # of the witness, and of the parent of the child
                assert held_at_last(witness, room, SIZE, contexts) == SIZE
                rest = witness.ask("available()")
                assert witness.ask(f"alloc({rest} + 1)[0]") == 2
                assert witness.ask(f"alloc({rest})[0]") == 0
        finally:
            os.kill(child, signal.SIGKILL)
        with parties(room, source=POOLS) as (witness,):
            assert held_at_last(witness, room, 0) == 0
    assert driver_memory.peak_bytes(machine) <= QUOTA


def test_a_child_keeps_the_pool_of_its_dead_parent(room, opened, machine):
    driver_memory.watch(machine)
    with parties(room, room, source=LIVES + POOLS) as (owner, user):
        _, there = opened(owner, user)
        child = owner.ask("lives()")
        try:
            owner.kill()
            assert user.ask(f"free(U64({there}))") == 0
            assert held(user, room) == SIZE
        finally:
            os.kill(child, signal.SIGKILL)
        assert held_at_last(user, room, SIZE) == SIZE  # it has the pool open
        user.kill()
        with parties(room, source=POOLS) as (witness,):
            assert held_at_last(witness, room, 0) == 0
    assert driver_memory.peak_bytes(machine) <= QUOTA
