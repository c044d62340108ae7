"""Short constructors of container grants on two devices."""

from pyvgpu import device, quota
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants

GIB = 1 << 30
UNIT = 256 << 20
UUID = "GPU-0000000{}-0000-0000-0000-000000000000"
DEVICES = {
    UUID.format(index): device.Device(UUID.format(index), index, "H100", 80 * GIB, GIB // 2)
    for index in range(2)
}
ELASTIC = quota.TimePolicy.ELASTIC


def grant(vcore=50, units=32, count=1, now=None, **fields):
    """A grant of *count* devices with *vcore* and *units* of memory of each."""
    size = 80 * GIB if vcore == 100 else units * UNIT
    return grants.Grant(
        f"{7:016x}",
        frozenset(f"c{i}" for i in range(vcore * count)),
        1.0,
        grants.Owner("uid", "team", "pod", "main"),
        frozenset(f"m{i}" for i in range(units * count)),
        tuple(datatypes.NodeShare(UUID.format(i), now or vcore, size) for i in range(count)),
        **fields,
    )
