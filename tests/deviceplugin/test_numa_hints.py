"""NUMA nodes of ids, which kubelet's Topology Manager reads, and the placement on its choice."""

import dataclasses

import grant_room
import pytest
from fake_kubelet import container, pod

from pyvgpu.deviceplugin.kubelet import device_ids, offers
from pyvgpu.names import VCORE_RESOURCE as VCORE
from pyvgpu.names import VMEMORY_RESOURCE as VMEMORY

EVERYTHING = device_ids.OURS[0].ids(8)  # of two devices with four each


def capacity(numa, given=()):
    return device_ids.ResourceCapacity(4, frozenset(f"c{one}" for one in given), numa=numa)


@pytest.mark.parametrize(
    ("capacities", "numa"),
    [
        pytest.param([capacity(0), capacity(1)], "00001111", id="each device's place"),
        pytest.param([capacity(1), capacity(0)], "11110000", id="any order"),
        pytest.param([capacity(0), capacity(0)], "", id="one node: nothing to choose"),
        pytest.param([capacity(0), capacity(None)], "", id="unknown"),
        pytest.param([capacity(0, [0, 1]), capacity(1, [4])], "00001111", id="as preferred"),
        pytest.param([capacity(0, [4, 5]), capacity(1)], "00110011", id="ids at another's place"),
        pytest.param([capacity(0, [4, 5, 6, 7]), capacity(1)], "11110000", id="swapped"),
        pytest.param([capacity(0, [0, 1, 2, 3]), capacity(1)], "00001111", id="one is full"),
    ],
)
def test_ids_have_the_numa_node_of_the_capacity(capacities, numa):
    expected = {f"c{at}": int(one) for at, one in enumerate(numa)}
    assert device_ids.numa_nodes(EVERYTHING, capacities) == expected


def test_kubelet_gets_the_numa_node_of_each_id():
    offer = offers.Offer(device_ids.OURS[0])
    offer.set(2, numa={"c0": 0, "c1": 1})
    listing = next(offer.changes(lambda: True))
    assert [[node.id for node in device.topology.nodes] for device in listing.devices] == [
        [0],
        [1],
    ]
    assert [device.HasField("topology") for device in listing.devices] == [True, True]


def test_without_numa_nodes_kubelet_gets_no_topology():
    offer = offers.Offer(device_ids.OURS[0], 2)
    listing = next(offer.changes(lambda: True))
    assert not any(device.HasField("topology") for device in listing.devices)


@pytest.fixture
def room(kubelet, tmp_path):
    has = tuple(
        dataclasses.replace(device, numa=number)
        for number, device in enumerate(grant_room.devices(2))
    )
    with grant_room.running(kubelet, tmp_path, has) as made:
        yield made


def insist(room, numa, vcore, vmemory):
    """Let kubelet allocate only ids of one NUMA node, as its policy single-numa-node does."""
    for name, count in ((VCORE, vcore), (VMEMORY, vmemory)):
        (offer,) = (one for one in room.offers.values() if one.resource.name == name)
        there = [each for each, node in offer.numa.items() if node == numa]
        room.kubelet.insists[name] = frozenset(sorted(there)[:count])


@pytest.mark.parametrize("numa", [0, 1])
def test_container_gets_a_device_of_the_numa_node_that_kubelet_chose(room, numa):
    insist(room, numa, 30, 2)
    assert room.run(pod("p", container("a", 30, 2)), "a") == f"30 2 GPU-{numa}"
    (offer, _) = room.offers.values()
    held = next(iter(room.grant_manager.known.values())).vcore_ids
    assert {offer.numa[each] for each in held} == {numa}


def test_a_full_numa_node_is_no_reason_to_wait(room):
    insist(room, 1, 30, 2)
    room.grant_manager.see(
        [
            dataclasses.replace(device, cordoned=device.numa == 1)
            for device in room.grant_manager.devices
        ]
    )
    assert room.run(pod("p", container("a", 30, 2)), "a") == "30 2 GPU-0"
