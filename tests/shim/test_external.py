"""Memory of other APIs: charged to the importing process until it is destroyed."""

import driver_memory
from parties import EXTERNAL, QUOTA, held, parties
from shim_room import MIB

from pyvgpu.simulation import simulator

SIZE = 256 * MIB


def test_an_import_is_charged_until_it_is_destroyed(rooms):
    room, _ = rooms
    with parties(room, source=EXTERNAL) as (user,):
        memory = user.get(f"foreign(make_file({SIZE}), {SIZE})")
        assert held(user, room, 1) == SIZE
        assert user.ask(f"destroy({memory})") == 0
        assert held(user, room, 1) == 0


def test_memory_over_quota_is_not_imported(rooms, machine):
    room, _ = rooms
    with parties(room, source=EXTERNAL) as (user,):
        before = user.ask("available()")
        own = user.get(f"make({before - SIZE + 2 * MIB})")
        driver_memory.watch(machine)
        assert user.ask(f"foreign(make_file({SIZE}), {SIZE})")[0] == 2
        assert driver_memory.used_bytes(machine) <= QUOTA
        assert user.ask(f"drop({own})") == 0
        assert user.ask("available()") == before
        assert user.get(f"foreign(make_file({SIZE}), {SIZE})")


def test_an_import_ends_with_its_context(rooms):
    room, _ = rooms
    with parties(room, source=EXTERNAL) as (user,):
        user.get(f"foreign(make_file({SIZE}), {SIZE})")
        assert user.ask("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
        assert user.ask("context() and available()") == QUOTA - room.reserve


def test_driver_error_leaves_the_charge_unchanged(rooms, machine):
    room, _ = rooms
    simulator.set_faults(
        machine, "call cuImportExternalMemory 1 999", "call cuDestroyExternalMemory 1 700"
    )
    with parties(room, source=EXTERNAL) as (user,):
        assert user.ask(f"foreign(make_file({SIZE}), {SIZE})")[0] == 999
        assert held(user, room, 1) == 0
        memory = user.get(f"foreign(make_file({SIZE}), {SIZE})")
        assert user.ask(f"destroy({memory})") == 700
        assert held(user, room, 1) == SIZE
        assert user.ask(f"destroy({memory})") == 0
        assert held(user, room, 1) == 0


def test_physical_memory_of_the_same_container_is_paid_for_once(rooms):
    room, _ = rooms
    with parties(room, source=EXTERNAL) as (user,):
        made = user.get(f"make({SIZE})")
        descriptor = user.get(f"export({made})")
        memory = user.get(f"foreign({descriptor}, {SIZE})")
        assert held(user, room, 1) == SIZE
        file = user.get(f"foreign(make_file({SIZE}), {SIZE})")
        assert held(user, room, 1) == 2 * SIZE
        assert user.ask(f"destroy({file})") == 0
        assert user.ask(f"drop({made})") == 0
        assert held(user, room, 1) == SIZE
        assert user.ask(f"destroy({memory})") == 0
        assert held(user, room, 1) == 0


def test_false_size_gets_no_uncharged_memory(rooms, machine):
    room, _ = rooms
    driver_memory.watch(machine)
    with parties(room, source=EXTERNAL) as (user,):
        results = []
        for _ in range(QUOTA // SIZE):
            result, made = user.ask(f"make({SIZE})")
            results.append(result)
            if result == 0:
                descriptor = user.get(f"export({made})")
                user.get(f"foreign({descriptor}, 512)")
                assert user.ask(f"drop({made})") == 0
    assert set(results) == {0, 2}
    assert driver_memory.peak_bytes(machine) <= QUOTA


def test_memory_of_another_api_is_paid_for_beside_an_export_whose_descriptor_is_open(rooms):
    room, _ = rooms
    with parties(room, source=EXTERNAL) as (user,):
        made = user.get(f"make({SIZE})")
        user.get(f"export({made})")
        user.get(f"foreign(make_file({SIZE}), {SIZE})")
        assert held(user, room, 1) == 2 * SIZE
