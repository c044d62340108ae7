"""The topology of a node's devices, in gpu-manager's format."""

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.gpu_manager import topology
from pyvgpu.deviceplugin.gpu_manager.topology import Leaf


def devices(*paths):
    """Return devices of 8 bytes, with the given paths between pairs of them."""
    count = max((max(pair) for pair, _ in paths), default=0) + 1
    links = {at: {} for at in range(count)}
    for (one, other), path in paths:
        links[one][f"GPU-{other}"] = links[other][f"GPU-{one}"] = datatypes.DeviceLink(path)
    return [datatypes.NodeDevice(f"GPU-{at}", at, 8, links=links[at]) for at in range(count)]


def test_single_device_is_below_the_root():
    (only,) = devices()
    assert topology.text([Leaf(only, (7, 8), 3, 70, 5)]) == (
        "ROOT:0\n"
        "|---GPU0 (pids: [7 8], usedMemory: 3, totalMemory: 8, allocatableCores: 70, "
        "allocatableMemory: 5)\n"
    )


def test_devices_are_below_their_nearest_connection():
    switch, bridge, system = (
        datatypes.LinkPath.SWITCH,
        datatypes.LinkPath.BRIDGE,
        datatypes.LinkPath.SYSTEM,
    )
    found = devices(
        ((0, 1), switch),
        ((0, 2), bridge),
        ((1, 2), bridge),
        *(((at, 3), system) for at in range(3)),
    )
    leaves = [Leaf(device, free_bytes=8) for device in found]
    leaves[1] = Leaf(found[1], (5,), 2, 0, 0)
    whole = "allocatableCores: 100, allocatableMemory: 8)\n"
    none = "allocatableCores: 0, allocatableMemory: 0)\n"
    assert topology.text(leaves) == (
        "ROOT:3\n"
        f"|---SYS (aval: 3, pids: [5], usedMemory: 2, totalMemory: 32, {none}"
        f"|   |---PHB (aval: 2, pids: [5], usedMemory: 2, totalMemory: 24, {none}"
        f"|   |   |---PIX (aval: 1, pids: [5], usedMemory: 2, totalMemory: 16, {none}"
        f"|   |   |   |---GPU0 (pids: [], usedMemory: 0, totalMemory: 8, {whole}"
        f"|   |   |   |---GPU1 (pids: [5], usedMemory: 2, totalMemory: 8, {none}"
        f"|   |   |---GPU2 (pids: [], usedMemory: 0, totalMemory: 8, {whole}"
        f"|   |---GPU3 (pids: [], usedMemory: 0, totalMemory: 8, {whole}"
    )


def test_node_without_devices_has_only_a_root():
    assert topology.text([]) == "ROOT:0\n"
