"""Preferred ids for kubelet are those of the device that the allocator would choose."""

import grant_room
import pytest
from fake_kubelet import VCORE, container, pod

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.grants import placement
from pyvgpu.deviceplugin.kubelet import plugin_messages
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

GIB = 1 << 30
BINPACK, SPREAD = datatypes.Packing.BINPACK, datatypes.Packing.SPREAD


def node(*held, **more):
    devices = tuple(
        datatypes.NodeDevice(f"GPU-{number}", number, 4 * GIB, **more) for number in range(3)
    )
    return datatypes.NodeDevices(
        devices,
        tuple(
            datatypes.Holding(datatypes.NodeShare(f"GPU-{index}", vcore, gib * GIB), "p")
            for index, vcore, gib in held
        ),
    )


def chosen(kind, size, has, packing=BINPACK, taken=(), must=()):
    letter, count = ("c", 300) if kind is ResourceKind.VCORE else ("m", 12)
    everything = tuple(f"{letter}{number}" for number in range(count))
    free = tuple(free_id for free_id in everything if int(free_id[1:]) not in taken)
    offered = placement.Offered(has, everything)
    asked = plugin_messages.PreferredRequest(free, must, size)
    return placement.preferred(kind, asked, offered, packing, GIB)


def numbers(found):
    return [int(device_id[1:]) for device_id in found]


@pytest.mark.parametrize(
    ("kind", "size", "held", "packing", "first"),
    [
        pytest.param(ResourceKind.VCORE, 30, (), BINPACK, 0, id="empty devices"),
        pytest.param(ResourceKind.VCORE, 30, [(1, 50, 1)], BINPACK, 100, id="on the used device"),
        pytest.param(ResourceKind.VCORE, 60, [(1, 50, 1)], BINPACK, 0, id="where there is room"),
        pytest.param(ResourceKind.VCORE, 30, [(0, 50, 1), (1, 50, 1)], SPREAD, 200, id="spread"),
        pytest.param(ResourceKind.VMEMORY, 2, [(1, 50, 1)], BINPACK, 4, id="memory"),
        pytest.param(ResourceKind.VMEMORY, 4, [(0, 1, 1)], BINPACK, 4, id="all memory of one"),
    ],
)
def test_preferred_ids_are_those_of_the_likely_device(kind, size, held, packing, first):
    assert numbers(chosen(kind, size, node(*held), packing)) == list(range(first, first + size))


def test_whole_devices_get_all_their_ids():
    found = numbers(chosen(ResourceKind.VCORE, 200, node((1, 30, 1))))
    assert sorted(found) == [*range(100), *range(200, 300)]


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(ResourceKind.VCORE, 150, id="an invalid amount"),
        pytest.param(ResourceKind.VMEMORY, 9, id="more than a device"),
        pytest.param(ResourceKind.VMEMORY, 0, id="nothing"),
    ],
)
def test_request_without_a_place_gets_the_lowest_ids(kind, size):
    assert numbers(chosen(kind, size, node())) == list(range(size))


def test_taken_and_required_ids_are_respected():
    found = chosen(ResourceKind.VCORE, 3, node((1, 50, 1)), taken=(100, 101), must=("c7",))
    assert found == ("c7", "c102", "c103")


def test_ids_of_a_grant_match_its_device(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as room:
        for index in range(2):
            one = kubelet.admit(pod(f"p{index}", container("a", 60, 4)))
            assert room.start(one, "a").shares[0].uuid == f"GPU-{index}"
            own = numbers(kubelet.ids(one, "a", VCORE))
            assert set(own) <= set(range(index * 100, (index + 1) * 100))
