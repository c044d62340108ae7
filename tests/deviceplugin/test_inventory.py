"""Inventory of the node's devices, from a simulated driver's NVML."""

import json
import subprocess
import sys

import machine_room
import pytest
import waiting

from pyvgpu import device, models
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.devices import inventory
from pyvgpu.simulation import simulator
from pyvgpu.volumes import cdi

POLL = """
import json, sys
from pathlib import Path
from pyvgpu import device, nvml
from pyvgpu.simulation import simulator
from pyvgpu.deviceplugin.devices import inventory
machine = simulator.read_machine(Path(sys.argv[2]))
hardware = device.simulated(machine)
with nvml.session(Path(sys.argv[1]) / "libnvidia-ml.so.1"):
    seen = inventory.read(hardware, [("h100", "fast"), ("pyvgpu", "any")])
at = {one.uuid: one.index for one in hardware}
print(json.dumps([
    {
        "minor": one.minor, "numa": one.numa, "class": one.compute_class,
        "links": {at[uuid]: [link.path, link.nvlinks] for uuid, link in one.links.items()},
    }
    for one in seen
]))
"""


INSTALLED = """
import json, sys
from pathlib import Path
from pyvgpu import device, nvml
from pyvgpu.allocator import annotations
from pyvgpu.deviceplugin.devices import inventory
library = Path(sys.argv[1]) / "libnvidia-ml.so.1"
hardware = device.installed(library)
with nvml.session(library):
    seen = inventory.read(hardware)
text = annotations.publish(annotations.Published(1 << 28, tuple(found.fact() for found in seen)))
published = annotations.read_node(text).devices
sizes = [gpu.memory_bytes for gpu in published]
print(json.dumps([*([gpu.mig, gpu.memory_bytes] for gpu in hardware), *sizes]))
"""


def test_device_without_reported_memory_does_not_affect_others(tmp_path):
    """Like MIG mode without privileges; the node's annotation must stay valid."""
    machine = simulator.open_machine("h100:2", tmp_path / "machines")
    simulator.set_faults(machine, "mig 0")
    size = machine.devices[1].memory_bytes
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED, machine_room.driver_folder(machine)],
        capture_output=True,
        text=True,
        timeout=waiting.PROMPT,
        check=True,
        env=machine_room.environment(machine),
    )
    assert json.loads(done.stdout) == [[True, 0], [False, size], 1, size]


def polled(machine):
    folder = machine_room.driver_folder(machine)
    done = subprocess.run(
        [sys.executable, "-c", POLL, folder, machine.folder],
        capture_output=True,
        text=True,
        timeout=waiting.PROMPT,
        check=True,
        env=machine_room.environment(machine),
    )
    return json.loads(done.stdout)


def test_nvlinks_through_a_switch_are_found(tmp_path):
    seen = polled(simulator.open_machine("h100:6,t4:2", tmp_path))
    links = models.BY_KEY["h100"].nvlinks
    assert [one["minor"] for one in seen] == list(range(8))
    assert [one["numa"] for one in seen] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [one["class"] for one in seen] == ["fast"] * 6 + ["any"] * 2
    assert seen[0]["links"] == {
        "1": [datatypes.LinkPath.SWITCH, links],
        "2": [datatypes.LinkPath.NUMA, links],
        "3": [datatypes.LinkPath.NUMA, links],
        "4": [datatypes.LinkPath.SYSTEM, links],
        "5": [datatypes.LinkPath.SYSTEM, links],
        "6": [datatypes.LinkPath.SYSTEM, 0],
        "7": [datatypes.LinkPath.SYSTEM, 0],
    }
    assert seen[6]["links"]["7"] == [datatypes.LinkPath.SWITCH, 0]


def test_lost_device_has_no_links(tmp_path):
    machine = simulator.open_machine("t4:4", tmp_path)
    simulator.set_faults(machine, "lost 1")
    seen = polled(machine)
    assert seen[0]["links"]["2"] == [datatypes.LinkPath.NUMA, 0]
    assert seen[1]["numa"] is None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"b": 2}, {"a": 2}, 2),
        ({"switch": 12}, {"switch": 18}, 12),
        ({"s1": 6, "s2": 6}, {"s1": 6, "s2": 4}, 10),
        ({"s1": 6}, {"s2": 6}, 0),
        ({}, {}, 0),
    ],
)
def test_links_are_direct_or_through_a_common_switch(one, other, expected):
    first, second = inventory.Ends("a", one), inventory.Ends("b", other)
    assert inventory.nvlinks_between(first, second) == expected


def seen(index, **fields):
    uuid = f"GPU-{index:08x}-0000-0000-0000-000000000000"
    hardware = device.Device(uuid, index, "NVIDIA H100", 80 << 30, 512 << 20)
    return inventory.InventoryDevice(
        hardware, **{"minor": index, "numa": 0, "links": {}, **fields}
    )


def test_device_node_matches_the_minor_number():
    found = (cdi.CdiNode("nvidia3", 195, 3), cdi.CdiNode("nvidiactl", 195, 255))
    devices = (seen(0, minor=3), seen(1, minor=1), seen(2, minor=None))
    assert inventory.nodes(devices, found) == {devices[0].device.uuid: found[0]}


def test_allocator_device_has_the_minimum_share():
    given = seen(2, compute_class="fast").fact("Xid 79", cordoned=True, allocated_by="dra")
    assert given == datatypes.NodeDevice(
        uuid="GPU-00000002-0000-0000-0000-000000000000",
        index=2,
        memory_bytes=80 << 30,
        model="NVIDIA H100",
        compute_class="fast",
        numa=0,
        links={},
        unhealthy="Xid 79",
        cordoned=True,
        allocated_by="dra",
        least_bytes=(512 << 20) + (64 << 20),
    )
