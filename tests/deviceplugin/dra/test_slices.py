"""Devices in a ResourceSlice: capacities, attributes, taints."""

import dataclasses

import pytest

from pyvgpu import device
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.devices import inventory
from pyvgpu.deviceplugin.dra import resource_slices

GIB = 1 << 30
UUID = "GPU-0000000{}-0000-0000-0000-00000000000A"
DRIVER = inventory.DriverVersions("550.163.01", "12.4")
NODE = {"name": "node-1", "uid": "n"}


def seen(index, *linked, **more):
    links = {UUID.format(peer): datatypes.DeviceLink(nvlinks=4) for peer in linked}
    one = device.Device(UUID.format(index), index, "NVIDIA H100", 80 * GIB + 5, GIB // 2)
    return inventory.InventoryDevice(one, index, 1, links, "fast", "9.0", "pci0000:00", **more)


ALL = resource_slices.ServerSupport()


def devices(*found, support=ALL, **fields):
    known = [dataclasses.replace(sighting.fact(), **fields) for sighting in found]
    return resource_slices.devices_of(found, known, DRIVER, support)


def test_slice_device_can_be_shared_by_vcore_and_mebibytes():
    (one,) = devices(seen(0), least_bytes=(600 << 20) + 1)
    assert one == {
        "name": "gpu-00000000-0000-0000-0000-00000000000a",
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": UUID.format(0)},
            "model": {"string": "NVIDIA H100"},
            "computeClass": {"string": "fast"},
            "driverReleaseText": {"string": "550.163.01"},
            "cudaVersionText": {"string": "12.4"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            "computeCapability": {"version": "9.0.0"},
            "driverRelease": {"version": "550.163.1"},
            "cudaVersion": {"version": "12.4.0"},
            "numa": {"int": 1},
        },
        "capacity": {
            "vcore": {
                "value": "100",
                "requestPolicy": {
                    "default": "100",
                    "validRange": {"min": "1", "max": "100", "step": "1"},
                },
            },
            "vmemory": {
                "value": "80Gi",
                "requestPolicy": {
                    "default": "80Gi",
                    "validRange": {"min": "601Mi", "max": "80Gi", "step": "1Mi"},
                },
            },
        },
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.163.01", "550.163.1"),
        ("12.4", "12.4.0"),
        ("13", "13.0.0"),
        ("535.104.05.01", "535.104.5"),
        ("", ""),
        ("unknown", ""),
        ("1.x", ""),
    ],
)
def test_versions_are_semantic_or_omitted(text, version):
    assert resource_slices.version(text) == version


def test_unknown_attributes_are_omitted():
    (one,) = resource_slices.devices_of(
        [it := dataclasses.replace(seen(0), numa=None, compute_capability="", pcie_root="")],
        [it.fact()],
        inventory.DriverVersions(),
    )
    assert set(one["attributes"]) == {"uuid", "model", "computeClass"}


@pytest.mark.parametrize(
    ("fields", "taints"),
    [
        ({}, None),
        ({"unhealthy": "Xid 79"}, [{"key": "pyvgpu.io/unhealthy", "effect": "NoSchedule"}]),
        ({"cordoned": True}, [{"key": "pyvgpu.io/cordoned", "effect": "NoSchedule"}]),
    ],
)
def test_unhealthy_and_cordoned_devices_have_a_taint(fields, taints):
    (one,) = devices(seen(0), **fields)
    assert one.get("taints") == taints
    untainted = devices(seen(0), support=resource_slices.ServerSupport(taints=False), **fields)
    assert len(untainted) == (taints is None)


def test_without_sharing_devices_are_whole():
    (one,) = devices(seen(0), support=resource_slices.ServerSupport(sharing=False))
    assert "allowMultipleAllocations" not in one
    assert one["capacity"] == {"vcore": {"value": "100"}, "vmemory": {"value": "80Gi"}}


@pytest.mark.parametrize(
    ("links", "groups"),
    [
        pytest.param([(), ()], {}, id="none"),
        pytest.param([(1,), (0,)], {0: 0, 1: 0}, id="a pair"),
        pytest.param([(1,), (0,), (3,), (2,)], {0: 0, 1: 0, 2: 2, 3: 2}, id="two pairs"),
        pytest.param([(1,), (0, 2), (1,)], {0: 0, 1: 0}, id="a chain is no group"),
    ],
)
def test_nvlink_group_is_linked_all_to_all(links, groups):
    found = resource_slices.nvlink_groups([seen(index, *own) for index, own in enumerate(links)])
    assert found == {UUID.format(one): UUID.format(first).lower() for one, first in groups.items()}


def published(*found, **fields):
    (made,) = resource_slices.device_slices(NODE, devices(*found, **fields))
    made["metadata"]["resourceVersion"] = "7"
    return made


def test_slice_is_owned_by_its_node_and_is_one_pool():
    made = published(seen(0))
    assert made["metadata"]["name"] == "node-1-pyvgpu.io"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "n"
    assert made["spec"]["pool"] == {"name": "node-1", "generation": 1, "resourceSliceCount": 1}


def test_longest_node_name_gives_a_valid_slice_name():
    names = {
        resource_slices.name_of("n" * 251 + node, suffix)
        for node in ("aa", "ab")
        for suffix in ("", ".mig-0")
    }
    assert len(names) == 4
    assert all(len(name) <= 253 for name in names)


def test_comparison_ignores_server_fields_and_sees_taints():
    before = published(seen(0), unhealthy="Xid 79")
    before["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-11-22T00:00:00Z"
    before["spec"]["pool"]["generation"] = 4
    assert not resource_slices.differs([published(seen(0), unhealthy="Xid 79")], [before])
    assert resource_slices.differs([published(seen(0))], [before])
    after = resource_slices.renewed(published(seen(0)), before, 5)
    assert after["spec"]["pool"]["generation"] == 5
    assert after["metadata"]["resourceVersion"] == "7"


def test_more_devices_than_a_slice_holds_are_several_slices_of_one_generation():
    entries = [{"name": f"d{number}"} for number in range(resource_slices.MOST_DEVICES + 1)]
    pool = resource_slices.device_slices(NODE, entries)
    assert [one["metadata"]["name"] for one in pool] == [
        "node-1-pyvgpu.io",
        "node-1-pyvgpu.io.more-1",
    ]
    assert [len(one["spec"]["devices"]) for one in pool] == [64, 1]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in pool} == {2}
    there = [resource_slices.renewed(one, None, 3) for one in pool]
    assert not resource_slices.differs(pool, there)
    there[1] = resource_slices.renewed(pool[1], None, 2)
    assert resource_slices.differs(pool, there), "a write that was cut short"
    assert resource_slices.differs(pool, there[:1])


def test_fields_dropped_by_the_server_are_detected():
    wanted = published(seen(0), unhealthy="Xid 79")
    assert resource_slices.support_by(wanted, wanted) == resource_slices.ServerSupport()
    kept = published(seen(0), support=resource_slices.ServerSupport(sharing=False))
    support = resource_slices.support_by(wanted, kept)
    assert support == resource_slices.ServerSupport(sharing=False, taints=False)
    assert (
        resource_slices.ServerSupport().both(support)
        == support.both(resource_slices.ServerSupport(taints=False))
        == support
    )
    shares, taints = support.lacks
    assert "DRAConsumableCapacity" in shares
    assert "DRADeviceTaints" in taints
    assert not list(resource_slices.ServerSupport().lacks)
