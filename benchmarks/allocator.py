"""Allocator latency: shares on 100 devices, and whole devices on 8 and 16.

    python benchmarks/allocator.py [--decisions 1000]

A standalone figure without a goal.
"""

from __future__ import annotations

import argparse
import random
import time

from pyvgpu.allocator import datatypes, placement_explanation, pod_placement

GIB = 1 << 30


def machine(count: int) -> tuple[datatypes.NodeDevice, ...]:
    """Return *count* devices: two to a switch, four to a NUMA node."""

    def link(one: int, other: int) -> datatypes.DeviceLink:
        path = datatypes.LinkPath.SWITCH if one // 2 == other // 2 else datatypes.LinkPath.SYSTEM
        return datatypes.DeviceLink(path)

    uuids = [f"GPU-{index:08x}-0000-0000-0000-000000000000" for index in range(count)]
    return tuple(
        datatypes.NodeDevice(
            uuids[index],
            index,
            80 * GIB,
            "H100",
            numa=index // 4,
            links={uuids[other]: link(index, other) for other in range(count) if other != index},
        )
        for index in range(count)
    )


def shares(count: int, decisions: int) -> tuple[float, int]:
    """Return the seconds of *decisions* while pods come and go, and how many were refused."""
    draw = random.Random(1)
    devices = machine(count)
    live: list[datatypes.Holding] = []
    refused = 0
    spent = 0.0
    for number in range(decisions):
        need = datatypes.ContainerNeed(
            draw.choice([10, 20, 30, 50, 70]), draw.randrange(1, 40) * GIB
        )
        pod = datatypes.Pod((datatypes.Container("main", need),))
        node = datatypes.NodeDevices(devices, tuple(live))
        begun = time.perf_counter()
        try:
            placed = pod_placement.place(node, pod)
        except placement_explanation.Refused:
            refused += 1
        else:
            live += pod_placement.holdings(pod.containers, placed, f"pod-{number}")
        spent += time.perf_counter() - begun
        if len(live) > 2 * count:
            del live[draw.randrange(len(live))]
    return spent, refused


def whole(count: int, wanted: int) -> float:
    """Return the seconds of one decision on *wanted* of *count* devices, the first of its kind."""
    node = datatypes.NodeDevices(machine(count))
    pod = datatypes.Pod(
        (datatypes.Container("main", datatypes.ContainerNeed(datatypes.WHOLE, 0, wanted)),)
    )
    begun = time.perf_counter()
    pod_placement.place(node, pod)
    return time.perf_counter() - begun


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=1000)
    decisions = parser.parse_args().decisions
    for count in (8, 16, 100):
        spent, refused = shares(count, decisions)
        each = spent / decisions * 1e6
        print(
            f"{count} devices: {decisions} decisions on shares in {spent:.2f} s, "
            f"{each:.0f} us each, {refused} refused"
        )
    for count, wanted in ((8, 4), (16, 4), (16, 8), (100, 8)):
        print(f"{count} devices: {wanted} whole ones in {whole(count, wanted) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
