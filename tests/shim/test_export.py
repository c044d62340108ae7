"""Physical memory shared by descriptors and fabric handles: charged once, to its owner."""

import socket

import driver_memory
import pytest
import shim_room
from parties import DESCRIPTORS, QUOTA, held, held_at_last, opened, parties
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator

SIZE = 256 * MIB
OTHER = 128 * MIB


@pytest.fixture
def room(make_room, machine):
    return make_room(machine, vmemory=QUOTA)


@pytest.fixture(params=["descriptor", "fabric handle"])
def share(request, post):
    """Return how one party lets another import SIZE bytes; its handles here and there."""
    kind = "FILE" if request.param == "descriptor" else "FABRIC"

    def do(owner, user):
        made = owner.get(f"make({SIZE}, {kind})")
        shared = owner.get(f"export({made}, {kind})")
        if kind == "FILE":
            shared = post(owner, user, shared)
        there = user.get(f"take({shared!r})")
        if kind == "FILE":
            user.ask(f"close({shared})")
        return made, there

    return do


def test_an_importer_of_the_same_container_does_not_pay(room, share):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made, there = share(owner, user)
        assert held(user, room) == SIZE
        address = user.get(f"show({there}, {SIZE})")
        assert held(user, room) == SIZE
        assert (opened(owner, room), opened(user, room)) == (0, SIZE)
        assert user.ask(f"[unmap({address}, {SIZE}), drop({there})]") == [0, 0]
        assert held(user, room) == SIZE
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room) == 0


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "never mapped"])
def test_memory_released_by_its_owner_is_charged_until_importers_release_it(room, share, mapped):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made, there = share(owner, user)
        address = user.get(f"show({there}, {SIZE})") if mapped else 0
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room) == SIZE
        assert user.ask(f"drop({there})") == 0
        if mapped:
            assert held(owner, room) == SIZE
            assert user.ask(f"unmap({address}, {SIZE})") == 0
            assert held(owner, room) == 0


def test_a_dead_owner_leaves_its_charge_to_the_container(room, share):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        _, there = share(owner, user)
        address = user.get(f"show({there}, {SIZE})")
        owner.get(f"make({OTHER})")
        owner.kill()
        assert held_at_last(user, room, SIZE) == SIZE
        assert user.ask(f"[unmap({address}, {SIZE}), drop({there})]") == [0, 0]
        assert held_at_last(user, room, 0) == 0


@pytest.mark.parametrize("first", ["owner", "user"])
def test_no_charge_is_left_after_owner_and_importer_died(room, share, first):
    with parties(room, room, room, source=DESCRIPTORS) as (owner, user, witness):
        _, there = share(owner, user)
        user.get(f"show({there}, {SIZE})")
        for party in (owner, user) if first == "owner" else (user, owner):
            party.kill()
        assert held_at_last(witness, room, 0) == 0


def test_an_importer_of_another_container_pays_from_its_first_mapping(rooms, share):
    one, other = rooms
    with parties(one, other, source=DESCRIPTORS) as (owner, user):
        _, there = share(owner, user)
        address = user.get(f"show({there}, {SIZE})")
        assert (held(owner, one, 1), held(user, other, 1)) == (SIZE, SIZE)
        second = user.get(f"show({there}, {SIZE})")
        assert held(user, other, 1) == SIZE
        owner.kill()
        for at in (address, second):
            assert held(user, other, 1) == SIZE
            assert user.ask(f"unmap({at}, {SIZE})") == 0
        assert user.ask(f"drop({there})") == 0
        assert held(user, other, 1) == 0


def test_memory_over_an_importers_quota_is_not_mapped(make_room, machine, share):
    one, other = make_room(machine, vmemory=QUOTA), make_room(machine, vmemory=1 * GIB)
    with parties(one, other, source=DESCRIPTORS) as (owner, user):
        _, there = share(owner, user)
        left = 1 * GIB - other.reserve
        own = user.get(f"make({left - SIZE + 2 * MIB})")
        assert user.ask(f"show({there}, {SIZE})")[0] == 2
        assert user.ask("available()") == SIZE - 2 * MIB
        assert user.ask(f"drop({own})") == 0
        address = user.get(f"show({there}, {SIZE})")
        assert user.ask("available()") == left - SIZE
        assert user.ask(f"[unmap({address}, {SIZE}), drop({there})]") == [0, 0]
        assert user.ask("available()") == left


def test_descriptor_in_a_socket_keeps_the_memory_charged(room, post):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made = owner.get(f"make({SIZE})")
        there = post(owner, user, owner.get(f"export({made})"))
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room) == SIZE
        handle = user.get(f"take({there})")
        user.ask(f"close({there})")
        address = user.get(f"show({handle}, {SIZE})")
        assert held(user, room) == SIZE
        assert user.ask(f"[unmap({address}, {SIZE}), drop({handle})]") == [0, 0]
        assert held(owner, room) == 0


def test_memory_is_charged_until_the_last_copy_of_its_descriptor_is_closed(room):
    with parties(room, source=DESCRIPTORS) as (owner,):
        made = owner.get(f"make({SIZE})")
        descriptors = [owner.get(f"export({made})"), owner.get(f"export({made})")]
        descriptors.append(owner.ask(f"os.dup({descriptors[0]})"))
        assert owner.ask(f"drop({made})") == 0
        for descriptor in descriptors:
            assert held(owner, room, 1) == SIZE
            owner.ask(f"close({descriptor})")
        assert held(owner, room, 1) == 0


def test_descriptors_that_are_never_closed_bring_no_device_over_the_quota(room, machine):
    driver_memory.watch(machine)
    with parties(room, source=DESCRIPTORS) as (owner,):
        results = []
        for _ in range(QUOTA // SIZE):
            result, made = owner.ask(f"make({SIZE})")
            results.append(result)
            if result == 0:
                owner.get(f"export({made})")
                assert owner.ask(f"drop({made})") == 0
    assert set(results) == {0, 2}
    assert driver_memory.peak_bytes(machine) <= QUOTA


@pytest.mark.parametrize("end", ["drop({made})", "kill"])
def test_a_descriptor_that_an_importer_keeps_keeps_the_memory_charged(room, post, end):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made = owner.get(f"make({SIZE})")
        there = post(owner, user, owner.get(f"export({made})"))
        for _ in range(2):
            handle = user.get(f"take({there})")
            address = user.get(f"show({handle}, {SIZE})")
            assert user.ask(f"[unmap({address}, {SIZE}), drop({handle})]") == [0, 0]
        if end == "kill":
            owner.kill()
        else:
            assert owner.ask(end.format(made=made)) == 0
        asked, contexts = (user, 1) if end == "kill" else (owner, 2)
        assert held_at_last(asked, room, SIZE, contexts) == SIZE
        user.ask(f"close({there})")
        assert held_at_last(asked, room, 0, contexts) == 0


def test_memory_that_is_opened_is_charged_beside_some_of_its_size_that_a_descriptor_keeps(
    room, post
):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        opened, left = owner.get(f"make({SIZE})"), owner.get(f"make({SIZE})")
        kept = owner.get(f"export({left})")
        there = post(owner, user, owner.get(f"export({opened})"))
        own = owner.get(f"take({kept})")
        address = owner.get(f"show({own}, {SIZE})")
        assert owner.ask(f"[unmap({address}, {SIZE}), drop({own})]") == [0, 0]
        handle = user.get(f"take({there})")
        user.get(f"show({handle}, {SIZE})")
        user.ask(f"close({there})")
        assert owner.ask(f"[drop({left}), drop({opened})]") == [0, 0]
        assert held(owner, room) == 2 * SIZE
        owner.ask(f"close({kept})")
        assert held(owner, room) == SIZE
        user.kill()
        assert held_at_last(owner, room, 0) == 0


def test_memory_in_a_sockets_queue_outlives_all_processes_of_the_container(
    room, machine, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as queue:
        queue.bind("queue")
        with parties(room, source=DESCRIPTORS) as (owner,):
            made = owner.get(f"make({SIZE})")
            owner.ask(f"send('queue', {owner.get(f'export({made})')})")
        assert driver_memory.left_bytes(machine) == SIZE
        for _ in range(2):
            with parties(room, source=DESCRIPTORS) as (witness,):
                assert held_at_last(witness, room, SIZE) == SIZE
                everything = witness.ask("available()") // (2 * MIB) * 2 * MIB
                assert witness.ask(f"make({everything})")[0] == 0
                assert driver_memory.used_bytes(machine) <= QUOTA
    with parties(room, source=DESCRIPTORS) as (witness,):
        assert held_at_last(witness, room, 0) == 0


def test_a_program_that_inherited_a_descriptor_keeps_the_memory_charged(room):
    with parties(room, source="import subprocess\n" + DESCRIPTORS) as (owner,):
        made = owner.get(f"make({SIZE})")
        shared = owner.get(f"export({made})")
        sleeper = owner.ask(f"subprocess.Popen(['sleep', '60'], pass_fds=[{shared}]).pid")
        owner.ask(f"close({shared})")
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room, 1) == SIZE
        owner.ask(f"[os.kill({sleeper}, 9), os.waitpid({sleeper}, 0)]")
        assert held_at_last(owner, room, 0) == 0


def test_memory_reexported_by_an_importer_stays_charged_to_its_owner(room, post):
    with parties(room, room, room, source=DESCRIPTORS) as (owner, second, third):
        made = owner.get(f"make({SIZE})")
        there = post(owner, second, owner.get(f"export({made})"))
        handle = second.get(f"take({there})")
        again = second.get(f"export({handle})")
        second.ask(f"close({there})")
        assert second.ask(f"drop({handle})") == 0
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room, 3) == SIZE
        there = post(second, third, again)
        handle = third.get(f"take({there})")
        third.ask(f"close({there})")
        third.get(f"show({handle}, {SIZE})")
        assert held(owner, room, 3) == SIZE
        third.kill()
        assert held_at_last(owner, room, 0, 2) == 0


def test_import_holds_no_other_memory(room, post):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made = [owner.get(f"make({SIZE})") for _ in range(3)]
        there = [post(owner, user, owner.get(f"export({one})")) for one in made]
        handle = user.get(f"take({there[1]})")
        for descriptor in there:
            user.ask(f"close({descriptor})")
        assert owner.ask(f"[drop(made) for made in {made}]") == [0, 0, 0]
        assert held(owner, room) == SIZE
        assert user.ask(f"drop({handle})") == 0
        assert held(owner, room) == 0


def test_memory_exported_in_both_ways_is_charged_while_any_process_has_it(room, post):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made = owner.get(f"make({SIZE}, FILE | FABRIC)")
        fabric = owner.get(f"export({made}, FABRIC)")
        shared = owner.get(f"export({made}, FILE)")
        handle = user.get(f"take({fabric!r})")
        user.get(f"show({handle}, {SIZE})")
        there = post(owner, user, shared)
        assert held(owner, room) == SIZE
        assert owner.ask(f"drop({made})") == 0
        user.ask(f"close({there})")
        assert held(owner, room) == SIZE
        user.kill()
        assert held_at_last(owner, room, 0) == 0


def test_a_fabric_handle_made_after_a_descriptor_keeps_the_memory_charged(room):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made = owner.get(f"make({SIZE}, FILE | FABRIC)")
        owner.ask(f"close({owner.get(f'export({made}, FILE)')})")
        user.get(f"take({owner.get(f'export({made}, FABRIC)')!r})")
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room) == SIZE
        owner.kill()
        assert held_at_last(user, room, SIZE) == SIZE


def test_a_process_takes_its_own_memory_back_and_pays_once(room):
    with parties(room, source=DESCRIPTORS) as (owner,):
        made = owner.get(f"make({SIZE})")
        descriptor = owner.get(f"export({made})")
        there = owner.get(f"take({descriptor})")
        owner.ask(f"close({descriptor})")
        address = owner.get(f"show({there}, {SIZE})")
        assert held(owner, room, 1) == SIZE
        assert owner.ask(f"drop({made})") == 0
        assert held(owner, room, 1) == SIZE
        assert owner.ask(f"[drop({there}), unmap({address}, {SIZE})]") == [0, 0]
        assert held(owner, room, 1) == 0


def test_two_imports_of_one_descriptor_are_one_charge(room, post):
    with parties(room, room, source=DESCRIPTORS) as (owner, user):
        made = owner.get(f"make({SIZE})")
        there = post(owner, user, owner.get(f"export({made})"))
        handles = [user.get(f"take({there})") for _ in range(2)]
        places = [user.get(f"show({handle}, {SIZE})") for handle in handles]
        user.ask(f"close({there})")
        assert owner.ask(f"drop({made})") == 0
        for handle, place in zip(handles, places, strict=True):
            assert held(owner, room) == SIZE
            assert user.ask(f"[unmap({place}, {SIZE}), drop({handle})]") == [0, 0]
        assert held(owner, room) == 0


@pytest.mark.slow
def test_ten_dead_creators_never_bring_the_device_over_the_quota(tmp_path, post):
    machine = simulator.open_machine("h100", root=tmp_path / "machines", mode="free")
    with shim_room.room(tmp_path / "room", machine, vmemory=QUOTA) as room:
        driver_memory.watch(machine)
        with parties(room, source=DESCRIPTORS) as (user,):
            kept = []
            for _ in range(10):
                with parties(room, source=DESCRIPTORS) as (owner,):
                    result, made = owner.ask(f"make({SIZE})")
                    if result == 0:
                        there = post(owner, user, owner.get(f"export({made})"))
                        kept.append(user.get(f"take({there})"))
                        user.get(f"show({kept[-1]}, {SIZE})")
                        user.ask(f"close({there})")
                    owner.kill()
            everything = user.ask("available()") // (2 * MIB) * 2 * MIB
            assert user.ask(f"make({everything})")[0] == 0
            assert driver_memory.peak_bytes(machine) <= QUOTA
            assert len(kept) == 10
