"""Short constructors of nodes, devices and pods for allocator tests."""

import dataclasses

from pyvgpu.allocator import datatypes

GIB = 1 << 30


def uuid(index):
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


def device(index, size=80, **fields):
    return datatypes.NodeDevice(uuid(index), index, size * GIB, **{"model": "H100", **fields})


def with_links(devices, link):
    """Link each pair of *devices* with ``link(i, j)``."""
    return tuple(
        dataclasses.replace(
            one,
            links={
                other.uuid: link(one.index, other.index)
                for other in devices
                if other is not one and link(one.index, other.index)
            },
        )
        for one in devices
    )


def pcie(count, size=80, per_switch=2, per_numa=4):
    """Devices without NVLink: some to a switch, some switches to a NUMA node."""

    def link(one, other):
        if one // per_switch == other // per_switch:
            return datatypes.DeviceLink(datatypes.LinkPath.SWITCH)
        if one // per_numa == other // per_numa:
            return datatypes.DeviceLink(datatypes.LinkPath.NUMA)
        return datatypes.DeviceLink(datatypes.LinkPath.SYSTEM)

    devices = [device(index, size, numa=index // per_numa) for index in range(count)]
    return with_links(devices, link)


def cube_mesh():
    """The eight devices of a DGX-1: four NVLink neighbours each, two of them by two links."""
    doubles = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    singles = [(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)]
    links = {frozenset(pair): 2 for pair in doubles} | {frozenset(pair): 1 for pair in singles}

    def link(one, other):
        path = datatypes.LinkPath.NUMA if one // 4 == other // 4 else datatypes.LinkPath.SYSTEM
        return datatypes.DeviceLink(path, links.get(frozenset((one, other)), 0))

    return with_links([device(index, 16, numa=index // 4) for index in range(8)], link)


def held(index, vcore, size, holder="team/other/main"):
    return datatypes.Holding(datatypes.NodeShare(uuid(index), vcore, size * GIB), holder)


def app(name="main", vcore=50, size=8, count=1):
    return datatypes.Container(name, datatypes.ContainerNeed(vcore, size * GIB, count))


def init(name="init", vcore=50, size=8, count=1):
    return datatypes.Container(
        name, datatypes.ContainerNeed(vcore, size * GIB, count), datatypes.ContainerKind.INIT
    )


def sidecar(name="side", vcore=50, size=8, count=1):
    return datatypes.Container(
        name, datatypes.ContainerNeed(vcore, size * GIB, count), datatypes.ContainerKind.SIDECAR
    )


def pod(*containers, **fields):
    return datatypes.Pod(containers or (app(),), **fields)
