"""Holdings of grants on devices: each id counts once, on its own device."""

import dataclasses

import pytest
from held_grants import DEVICES, GIB, UNIT, grant

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.grants import holdings
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

FACTS = tuple(
    datatypes.NodeDevice(one.uuid, one.index, one.memory_bytes) for one in DEVICES.values()
)


def held(*grants):
    return [
        (holding.share.vcore, holding.share.vmemory) for holding in holdings.held(grants, UNIT)
    ]


def numbers(kind, *grants, resources=device_ids.OURS):
    """Return for each device the number of allocated ids, and of those taken without an id."""
    (resource,) = [candidate for candidate in resources if candidate.kind is kind]
    found = holdings.capacities(resource, FACTS, grants, UNIT)
    return [(len(capacity.given), capacity.taken) for capacity in found]


@pytest.mark.parametrize("count", [1, 2])
def test_share_of_several_devices_divides_its_ids(count):
    assert held(grant(50, 32, count)) == [(50, 8 * GIB)] * count
    assert [given for given, _ in numbers(ResourceKind.VCORE, grant(50, 32, count))][:count] == [
        50
    ] * count


def test_ids_shared_within_a_pod_count_once():
    one = grant(50, 32)
    other = dataclasses.replace(
        one, id=f"{8:016x}", owner=dataclasses.replace(one.owner, container="other")
    )
    assert held(one, other) == [(50, 8 * GIB)]


def test_lowered_quota_still_holds_the_original_ids():
    assert held(grant(50, 32, now=10)) == [(50, 8 * GIB)]


def test_ended_grant_in_use_counts_without_ids():
    left = grant(50, 32).ended()
    assert held(left) == [(50, 8 * GIB)]
    assert numbers(ResourceKind.VCORE, left) == [(0, 50), (0, 0)]
    assert numbers(ResourceKind.VMEMORY, left) == [(0, 32), (0, 0)]


def test_ids_of_the_other_profile_withdraw_as_many():
    share, whole = grant(50, 32), grant(100, 0)
    assert numbers(ResourceKind.VCORE, share, resources=device_ids.GAIA) == [(0, 50), (0, 0)]
    assert numbers(ResourceKind.VMEMORY, share, resources=device_ids.GAIA) == [(0, 32), (0, 0)]
    assert numbers(ResourceKind.VCORE, share.ended(), resources=device_ids.GAIA) == [
        (0, 50),
        (0, 0),
    ]
    assert numbers(ResourceKind.VCORE, whole, resources=device_ids.GAIA) == [(0, 100), (0, 0)]
    assert numbers(ResourceKind.VMEMORY, whole, resources=device_ids.GAIA) == [(0, 320), (0, 0)]


def test_whole_device_takes_all_its_memory():
    whole = grant(100, 0)
    assert numbers(ResourceKind.VMEMORY, whole) == [(0, 320), (0, 0)]
    assert numbers(ResourceKind.VCORE, whole) == [(100, 0), (0, 0)]


def test_ids_shared_by_two_pods_count_twice():
    """Kubelet has lost its checkpoint, and allocates ids that are in use."""
    one = grant(30, 32)
    other = dataclasses.replace(
        one, id=f"{8:016x}", owner=dataclasses.replace(one.owner, uid="other", pod="other")
    )
    assert numbers(ResourceKind.VCORE, one, other) == [(30, 30), (0, 0)]
    assert numbers(ResourceKind.VMEMORY, one, other) == [(32, 32), (0, 0)]
