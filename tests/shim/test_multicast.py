"""Multicast objects: bound memory stays charged until it is unbound or the object is gone."""

import pytest
from multicast_source import MULTICAST
from shim_room import GIB

from pyvgpu.simulation import simulator

PROGRAM = (
    MULTICAST
    + """
G = 64 * MIB
context(1), context(0)
before = available()
def held():
    return (before - available()) / G
def team(handles=0):
    result, handle = make(2 * G, handles=handles)
    check(result or add(handle, 0) or add(handle, 1))
    return handle
def memory(size=G, handles=0):
    result, handle = create(size, on_device(0, handles))
    check(result)
    return handle
"""
)


@pytest.fixture
def room(make_room, tmp_path):
    """Return 2 GiB on each of two devices that can be one team."""
    machine = simulator.open_machine("h100:2", root=tmp_path / "pair")
    return make_room(machine, vmemory=2 * GIB, ordinals=(0, 1))


def test_an_object_takes_nothing_of_the_quota(room):
    answer = room.ask(PROGRAM + "object = team(); answer([held(), release(object), held()])")
    assert answer == [0, 0, 0]


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param("bind(o, m, G)", id="by handle"),
        pytest.param("bind_on(o, 0, m, G)", id="by handle and device"),
        pytest.param("bind_address(o, a, G)", id="by address"),
        pytest.param("bind_address_on(o, 0, a, G)", id="by address and device"),
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("unbind(o, 0, G)", id="unbound"),
        pytest.param("release(o)", id="object released"),
    ],
)
def test_bound_memory_stays_charged(room, bound, end):
    answer = room.ask(
        PROGRAM
        + f"""
o, m, a = team(), memory(), reserve(G)
check(map(a, G, m))
answer([{bound}, unmap(a, G), release(m), held(), {end}, held()])
"""
    )
    assert answer == [0, 0, 0, 1, 0, 0]


def test_mapped_object_keeps_bound_memory(room):
    answer = room.ask(
        PROGRAM
        + """
o, m, a = team(), memory(), reserve(2 * G)
check(bind(o, m, G) or release(m) or map(a, 2 * G, o))
answer([release(o), held(), unmap(a, 2 * G), held()])
"""
    )
    assert answer == [0, 1, 0, 0]


def test_only_unbound_memory_is_released(room):
    answer = room.ask(
        PROGRAM
        + """
o, first, second = team(), memory(), memory()
check(bind(o, first, G) or bind(o, second, G, offset=G))
check(release(first) or release(second))
answer([held(), unbind(o, 1, G) and held(), unbind(o, 0, G, offset=G), held(),
        unbind(o, 0, G), held()])
"""
    )
    assert answer[0] == 2
    assert answer[2:] == [0, 1, 0, 0]


def test_memory_in_several_parts_is_bound_by_one_address(room):
    answer = room.ask(
        PROGRAM
        + """
o, first, second, a = team(), memory(), memory(), reserve(2 * G)
check(map(a, G, first) or map(a + G, G, second) or release(first) or release(second))
result = bind_address(o, a, 2 * G)
check(unmap(a, 2 * G))
answer([result == 0, held(), unbind(o, 0, 2 * G) == 0, held()])
"""
    )
    bound, held, unbound, left = answer
    assert (held, left) == ((2, 0) if bound else (0, 0))
    assert bound == unbound


@pytest.mark.parametrize("fault", ["cuMulticastBindMem", "cuMulticastUnbind", "cuMulticastCreate"])
def test_driver_error_leaves_the_charge_exact(room, fault):
    simulator.set_faults(room.machine, f"call {fault} 1 999")
    answer = room.ask(
        PROGRAM
        + """
result, o = make(2 * G)
if result:
    result, o = make(2 * G)
m = memory()
check(result or add(o, 0) or add(o, 1))
results = [bind(o, m, G)]
if results[0]:
    results.append(bind(o, m, G))
check(release(m))
while True:
    results.append(unbind(o, 0, G))
    results.append(held())
    if results[-2] == 0:
        break
answer([results[-2:], release(o), held()])
"""
    )
    assert answer == [[0, 0], 0, 0]


def test_threads_lose_no_binding(room):
    answer = room.ask(
        PROGRAM
        + """
failures = []
def work():
    o = team()
    for step in range(300):
        m = memory(2 * MIB)
        results = [bind(o, m, 2 * MIB), release(m), unbind(o, 0, 2 * MIB)]
        if any(results):
            failures.append(results)
    failures.extend([1] * (release(o) != 0))
threads = [threading.Thread(target=work) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer([failures, held()])
"""
    )
    assert answer == [[], 0]


def test_a_handle_that_was_released_is_not_bound(room):
    answer = room.ask(
        PROGRAM
        + """
object, part, address = team(), memory(), reserve(G)
check(map(address, G, part) or release(part))
answer([bind(object, part, G), unmap(address, G), held()])
"""
    )
    assert answer == [1, 0, 0]
