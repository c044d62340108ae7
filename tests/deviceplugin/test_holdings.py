"""What grants hold of devices: each id once, on its own device."""

import dataclasses

import pytest
from held_grants import DEVICES, GIB, UNIT, grant

from pyvgpu.allocator import facts
from pyvgpu.deviceplugin import holdings, ids
from pyvgpu.deviceplugin.ids import Kind

FACTS = tuple(facts.Device(one.uuid, one.index, one.memory_bytes) for one in DEVICES.values())


def held(*grants):
    return [(it.share.vcore, it.share.vmemory) for it in holdings.held(grants, UNIT)]


def numbers(kind, *grants, resources=ids.OURS):
    """Return of each device what is given out and what is taken without an id."""
    (resource,) = [it for it in resources if it.kind is kind]
    found = holdings.stands(resource, FACTS, grants, UNIT)
    return [(len(it.given), it.taken) for it in found]


@pytest.mark.parametrize("count", [1, 2])
def test_a_share_of_each_of_several_devices_holds_its_part_of_each(count):
    assert held(grant(50, 32, count)) == [(50, 8 * GIB)] * count
    assert [given for given, _ in numbers(Kind.VCORE, grant(50, 32, count))][:count] == [
        50
    ] * count


def test_containers_of_a_pod_that_have_the_same_ids_hold_them_once():
    one = grant(50, 32)
    other = dataclasses.replace(
        one, id=f"{8:016x}", owner=dataclasses.replace(one.owner, container="other")
    )
    assert held(one, other) == [(50, 8 * GIB)]


def test_what_was_made_smaller_holds_what_it_was_given():
    assert held(grant(50, 32, now=10)) == [(50, 8 * GIB)]


def test_what_processes_keep_of_a_grant_that_is_over_has_no_ids_and_counts_all_the_same():
    left = grant(50, 32).ended()
    assert held(left) == [(50, 8 * GIB)]
    assert numbers(Kind.VCORE, left) == [(0, 50), (0, 0)]
    assert numbers(Kind.VMEMORY, left) == [(0, 32), (0, 0)]


def test_what_is_held_by_ids_of_another_resource_takes_as_many_of_this():
    share, whole = grant(50, 32), grant(100, 0)
    assert numbers(Kind.VCORE, share, resources=ids.GAIA) == [(0, 50), (0, 0)]
    assert numbers(Kind.VMEMORY, share, resources=ids.GAIA) == [(0, 32), (0, 0)]
    assert numbers(Kind.VCORE, share.ended(), resources=ids.GAIA) == [(0, 50), (0, 0)]
    assert numbers(Kind.VCORE, whole, resources=ids.GAIA) == [(0, 100), (0, 0)]
    assert numbers(Kind.VMEMORY, whole, resources=ids.GAIA) == [(0, 320), (0, 0)]


def test_a_whole_device_takes_the_memory_that_nobody_asked_for():
    whole = grant(100, 0)
    assert numbers(Kind.VMEMORY, whole) == [(0, 320), (0, 0)]
    assert numbers(Kind.VCORE, whole) == [(100, 0), (0, 0)]


def test_pods_with_the_same_ids_hold_them_twice():
    """As where kubelet has lost its checkpoint, and gives away what is in use."""
    one = grant(30, 32)
    other = dataclasses.replace(
        one, id=f"{8:016x}", owner=dataclasses.replace(one.owner, uid="other", pod="other")
    )
    assert numbers(Kind.VCORE, one, other) == [(30, 30), (0, 0)]
    assert numbers(Kind.VMEMORY, one, other) == [(32, 32), (0, 0)]
