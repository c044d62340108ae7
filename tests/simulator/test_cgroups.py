"""Limits of device memory for cgroups, by a driver that has them: law.cgroup_limits."""

import cgroup_room
import pytest
import shim_room
from machine_room import ask
from shim_room import GIB, MIB

from pyvgpu.simulation import simulator

pytestmark = cgroup_room.needs_cgroups

NONE, BY_DRIVER, BY_KERNEL = 0, 1, 2
NO_LIMIT = 2**64 - 1
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, OPERATING_SYSTEM = 2, 3, 4, 17

SET = """
N.nvmlInit()
d = N.nvmlDeviceGetHandleByIndex(0)
def put(cgroup, hard, soft=0):
    try:
        N.nvmlDeviceSetMemoryLimits_v1(d, N.c_nvmlSetMemoryLimits_v1_t(cgroup, soft, hard))
    except N.NVMLError as exc:
        return exc.value
    return 0
def get(cgroup):
    limits = N.c_nvmlGetMemoryLimits_v1_t(cgroup)
    N.nvmlDeviceGetMemoryLimits_v1(d, limits)
    return [limits.softLimit, limits.hardLimit, limits.currentUsed]
"""


@pytest.fixture(name="made")
def fixture_made():
    with cgroup_room.cgroup() as folder:
        yield folder


@pytest.fixture(name="machine_of")
def fixture_machine_of(tmp_path):
    """Return a function that creates a machine whose driver has limits of some kind."""
    return lambda kind: simulator.open_machine(
        "h100", root=tmp_path, law=simulator.Law(cgroup_limits=kind), context_bytes=256 * MIB
    )


def set_limit(machine, folder, hard, soft=0):
    return ask(machine, f"{SET}answer(put({bytes(folder)!r}, {hard}, {soft}))")


TAKE = """
context()
before = info()
held = []
while (it := alloc(64 * MIB))[0] == 0:
    held.append(it[1])
    if len(held) > 100:
        break
answer([before, len(held), it[0], info()[0]])
"""


@pytest.mark.parametrize("kind", [BY_DRIVER, BY_KERNEL])
def test_a_process_in_the_cgroup_has_no_more_than_its_limit(machine_of, made, kind):
    machine = machine_of(kind)
    assert set_limit(machine, made, 1 * GIB) == 0
    (free, total), count, refused, left = shim_room.ask_bare(
        machine, cgroup_room.joining(made) + TAKE
    )
    assert (free, total) == (768 * MIB, 1 * GIB)
    assert (count, refused, left) == (12, 2, 0)
    (free, total), count, _, _ = shim_room.ask_bare(machine, TAKE)  # a process outside of it
    assert total == machine.devices[0].memory_bytes
    assert count > 100


def test_processes_of_a_cgroup_have_its_limit_together(machine_of, made):
    machine = machine_of(BY_DRIVER)
    set_limit(machine, made, 1 * GIB)
    joined = cgroup_room.joining(made)
    source = joined + "context(); check(alloc(256 * MIB)[0]); answer(0); input()"
    with shim_room.started_bare(machine, source) as first:
        assert first.stdout.readline() == "0\n"
        second = joined + "context(); answer([alloc(256 * MIB)[0], alloc(MIB)[0]])"
        assert shim_room.ask_bare(machine, second) == [0, 2]
        first.kill()
    third = joined + "context(); answer([alloc(768 * MIB)[0], alloc(MIB)[0]])"
    assert shim_room.ask_bare(machine, third) == [0, 2]


def test_usage_is_reported_and_a_limit_can_be_lifted(machine_of, made):
    machine = machine_of(BY_DRIVER)
    set_limit(machine, made, 2 * GIB, 1 * GIB)
    source = cgroup_room.joining(made) + "context(); check(alloc(64 * MIB)[0]); answer(0); input()"
    with shim_room.started_bare(machine, source) as program:
        assert program.stdout.readline() == "0\n"
        lifted = f"c = {bytes(made)!r}\nanswer([get(c), put(c, {NO_LIMIT}), get(c)])"
        answer = ask(machine, SET + lifted)
        program.kill()
    assert answer == [[1 * GIB, 2 * GIB, 320 * MIB], 0, [0, NO_LIMIT, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "bytes_free"), [(BY_DRIVER, 1024), (BY_KERNEL, 256)])
def test_limit_of_an_ancestor_cgroup(machine_of, made, kind, bytes_free):
    """A driver that counts itself applies the nearest limit alone, the kernel all of them."""
    machine = machine_of(kind)
    with cgroup_room.cgroup(made) as inner:
        set_limit(machine, made, 512 * MIB)
        source = cgroup_room.joining(inner) + "context(); answer(info())"
        seen = shim_room.ask_bare(machine, source)
        assert seen == [256 * MIB, 512 * MIB]
        set_limit(machine, inner, 1280 * MIB)
        source = cgroup_room.joining(inner) + "context(); answer(available() // MIB)"
        assert shim_room.ask_bare(machine, source) == bytes_free


def test_nvml_shows_a_process_its_own_limit(machine_of, made):
    machine = machine_of(BY_DRIVER)
    set_limit(machine, made, 3 * GIB)
    source = """
N.nvmlInit()
d = N.nvmlDeviceGetHandleByIndex(0)
new = N.nvmlDeviceGetMemoryInfo(d, version=N.nvmlMemory_v2)
answer([new.total - new.reserved, new.free, N.nvmlDeviceGetMemoryInfo(d).total])
"""
    assert ask(machine, cgroup_room.joining(made) + source)[:2] == [3 * GIB, 3 * GIB]


def test_a_cgroup_that_is_removed_has_no_limit_any_more(machine_of):
    machine = machine_of(BY_DRIVER)
    source = f"""{SET}
results = set()
for number in range(1500):  # more than the table's entries
    os.mkdir(place + str(number).encode())
    results.add(put(place + str(number).encode(), 1 << 30))
    os.rmdir(place + str(number).encode())
answer(sorted(results))
"""
    with cgroup_room.cgroup() as folder:
        assert ask(machine, f"place = {bytes(folder)!r} + b'/c'\n{source}") == [0]


def test_invalid_limit_is_refused(machine_of, made, tmp_path):
    machine = machine_of(BY_DRIVER)
    total = machine.devices[0].memory_bytes
    assert set_limit(machine, made, 1, soft=2) == INVALID_ARGUMENT
    assert set_limit(machine, made, 2 * total) == INVALID_ARGUMENT
    assert set_limit(machine, tmp_path, GIB) == INVALID_ARGUMENT
    assert set_limit(machine, made / "absent", GIB) == OPERATING_SYSTEM
    asked = f"{SET}import os\nos.seteuid(65534)\nanswer(put({bytes(made)!r}, {GIB}))"
    assert ask(machine, asked) == NO_PERMISSION


def test_a_driver_without_limits_says_so(machine_of, made):
    assert set_limit(machine_of(NONE), made, GIB) == NOT_SUPPORTED
