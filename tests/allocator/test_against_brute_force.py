"""Devices are never allocated twice, and a fitting pod is placed: compared with brute force."""

import dataclasses
import itertools

import pytest
from allocator_nodes import GIB, app, cube_mesh, device, init, pcie, sidecar
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.allocator import (
    datatypes,
    free_capacity,
    nearness,
    placement_explanation,
    pod_placement,
    requests,
)

pytestmark = pytest.mark.slow

LIMIT = settings(max_examples=200)

needs = st.one_of(
    st.builds(
        lambda vcore, size, count: datatypes.ContainerNeed(vcore, size * GIB, count),
        st.sampled_from([1, 20, 30, 33, 40, 50, 60, 70, 99]),
        st.integers(1, 40),
        st.sampled_from([1, 1, 1, 2]),
    ),
    st.builds(lambda count: datatypes.ContainerNeed(100, 0, count), st.integers(1, 3)),
)
kinds = st.sampled_from(
    [
        datatypes.ContainerKind.APP,
        datatypes.ContainerKind.APP,
        datatypes.ContainerKind.INIT,
        datatypes.ContainerKind.SIDECAR,
    ]
)


@st.composite
def pods(draw, most=4):
    """A pod that the API server accepts: containers are in the order of their start."""
    wanted = draw(st.lists(st.tuples(needs, kinds), min_size=1, max_size=most))
    wanted.sort(key=lambda one: one[1] is datatypes.ContainerKind.APP)
    return datatypes.Pod(
        tuple(datatypes.Container(f"c{i}", need, kind) for i, (need, kind) in enumerate(wanted)),
        packing=draw(st.sampled_from(datatypes.Packing)),
    )


@st.composite
def devices(draw, most=4):
    count = draw(st.integers(1, most))
    shapes = [
        lambda: pcie(count, 40),
        lambda: cube_mesh()[:count],
        lambda: tuple(device(i, size) for i, size in enumerate([40, 16, 80, 40][:count])),
    ]
    made = draw(st.sampled_from(shapes))()
    ill = draw(st.sets(st.integers(0, count - 1), max_size=1))
    return tuple(
        device(
            one.index,
            one.memory_bytes // GIB,
            links=one.links,
            numa=one.numa,
            cordoned=one.index in ill,
        )
        for one in made
    )


def in_each_phase(pod, placed):
    """Add up the concurrent shares of each device, independently of the allocator."""
    starting = [c for c in pod.containers if c.kind is not datatypes.ContainerKind.APP]
    apps = [c for c in pod.containers if c.kind is datatypes.ContainerKind.APP]
    moments = []
    for at, container in enumerate(starting):
        before = [c for c in starting[:at] if c.kind is datatypes.ContainerKind.SIDECAR]
        moments.append([*before, container])
    moments.append([c for c in starting if c.kind is datatypes.ContainerKind.SIDECAR] + apps)
    for moment in moments:
        sums = {}
        for container in moment:
            for share in placed[container.name]:
                vcore, size = sums.get(share.uuid, (0, 0))
                sums[share.uuid] = vcore + share.vcore, size + share.vmemory
        yield sums


@LIMIT
@given(devices(), st.lists(st.tuples(pods(), st.booleans()), max_size=12))
def test_nothing_is_allocated_twice(machine, arrivals):
    """Pods come and go; concurrent shares never exceed a device."""
    live = {}
    for number, (pod, goes) in enumerate(arrivals):
        held = tuple(itertools.chain.from_iterable(holding for _, _, holding in live.values()))
        node = datatypes.NodeDevices(machine, held)
        placed = place_or_none(node, pod)
        if placed is None:
            continue
        assert pod_placement.problem(node, pod, placed) == ""
        holding = pod_placement.holdings(pod.containers, placed, f"pod-{number}")
        live[number] = pod, placed, holding
        check(machine, live.values())
        if goes:
            del live[min(live)]


def check(machine, live):
    for one in machine:
        vcore = size = tenants = 0
        whole = False
        for pod, placed, _ in live:
            peaks = [sums.get(one.uuid, (0, 0)) for sums in in_each_phase(pod, placed)]
            vcore += max(peak[0] for peak in peaks)
            size += max(peak[1] for peak in peaks)
            shares = [s for part in placed.values() for s in part if s.uuid == one.uuid]
            tenants += bool(shares)
            whole |= any(share.vcore == 100 for share in shares)
        assert vcore <= 100
        assert size <= one.memory_bytes
        assert not whole or tenants == 1
        assert not one.cordoned or not tenants


def brute_force(node, pod):
    """Return whether any choice of devices fits."""
    choices = [
        list(itertools.combinations(node.devices, container.need.count))
        for container in pod.containers
    ]
    free = {one.uuid: [100, one.memory_bytes, True] for one in node.devices}
    for holding in node.held:
        free[holding.share.uuid][0] -= holding.share.vcore
        free[holding.share.uuid][1] -= holding.share.vmemory
        free[holding.share.uuid][2] = False
    for choice in itertools.product(*choices):
        placed = {
            container.name: [
                datatypes.NodeShare(
                    one.uuid,
                    container.need.vcore,
                    one.memory_bytes if container.need.whole else container.need.vmemory,
                )
                for one in chosen
            ]
            for container, chosen in zip(pod.containers, choice, strict=True)
        }
        if all(
            sums[0] <= free[uuid][0]
            and sums[1] <= free[uuid][1]
            and (sums[0] < 100 or free[uuid][2] or not is_whole(placed, uuid))
            for moment in in_each_phase(pod, placed)
            for uuid, sums in moment.items()
        ) and not any(one.cordoned for chosen in choice for one in chosen):
            return True
    return False


def is_whole(placed, uuid):
    return any(s.vcore == 100 for part in placed.values() for s in part if s.uuid == uuid)


parts = st.tuples(st.sampled_from([1, 10, 30, 38, 39, 40, 50, 60]), st.sampled_from([1, 10, 20]))
tight = st.builds(
    lambda vcore, size: datatypes.ContainerNeed(vcore, size * GIB),
    st.sampled_from([30, 40, 45, 50, 60]),
    st.sampled_from([5, 15, 20, 30]),
)


@LIMIT
@given(
    devices(most=3),
    st.lists(st.one_of(tight, tight, needs), min_size=1, max_size=4),
    st.lists(kinds, min_size=4, max_size=4),
    st.lists(parts, min_size=3, max_size=3),
)
def test_a_place_is_found_exactly_where_there_is_one(machine, wanted, when, used):
    held = tuple(
        datatypes.Holding(
            datatypes.NodeShare(one.uuid, vcore, min(size * GIB, one.memory_bytes)), "other"
        )
        for one, (vcore, size) in zip(machine, used, strict=False)
        if vcore > 1
    )
    containers = [
        datatypes.Container(f"c{i}", need, kind)
        for i, (need, kind) in enumerate(zip(wanted, when, strict=False))
    ]
    containers.sort(key=lambda one: one.kind is datatypes.ContainerKind.APP)
    node, pod = datatypes.NodeDevices(machine, held), datatypes.Pod(tuple(containers))
    assert (place_or_none(node, pod) is not None) == brute_force(node, pod)


def place_or_none(node, pod):
    try:
        return pod_placement.place(node, pod)
    except placement_explanation.Refused as exc:
        return None if exc.reasons else {}


@LIMIT
@given(pods())
def test_a_pod_on_one_device_uses_as_much_as_kubelet_counts(pod):
    """So the ids that kubelet counts as free are free on the device, and the reverse."""
    placed = place_or_none(datatypes.NodeDevices((device(0, 160),)), pod)
    if placed and not any(container.need.whole for container in pod.containers):
        (holding,) = pod_placement.holdings(pod.containers, placed, "pod")
        assert (holding.share.vcore, holding.share.vmemory) == requests.effective(pod.containers)


@LIMIT
@given(st.sampled_from(["pcie", "mesh"]), st.sets(st.integers(0, 7), min_size=1), st.data())
def test_no_set_is_closer_than_the_chosen_one(kind, free, data):
    machine = cube_mesh() if kind == "mesh" else pcie(8)
    count = data.draw(st.integers(1, len(free)))
    table = nearness.table(machine)
    best = nearness.sets(table, tuple(sorted(free)), count)[0]

    def distance(chosen):
        pairs = [table.rows[a][b] for a, b in itertools.combinations(chosen, 2)]
        return nearness.tier(max(pairs, default=1)), sum(pairs)

    assert distance(best) == min(map(distance, itertools.combinations(sorted(free), count)))


@LIMIT
@given(st.sets(st.integers(0, 23), min_size=20), st.integers(6, 12))
def test_grown_sets_are_as_close_as_groups_allow(free, count):
    """On a tree: no more NUMA nodes than needed."""
    machine = pcie(24)
    chosen = nearness.sets(nearness.table(machine), tuple(sorted(free)), count)[0]
    assert len(set(chosen)) == count
    sizes = sorted((sum(i // 4 == g for i in free) for g in range(6)), reverse=True)
    needed = next(k for k in range(1, 7) if sum(sizes[:k]) >= count)
    assert len({index // 4 for index in chosen}) <= needed + 1


def test_init_containers_reuse_the_devices_of_the_others():
    machine = tuple(device(i) for i in range(4))
    pod = datatypes.Pod((init("i", 80), sidecar("s", 20), app("a", 60)))
    placed = pod_placement.place(datatypes.NodeDevices(machine), pod)
    assert len({share.uuid for part in placed.values() for share in part}) == 1


@LIMIT
@given(
    devices(),
    st.lists(st.tuples(pods(), st.booleans()), max_size=6),
    pods(),
    st.sampled_from(datatypes.Nearness),
    st.sampled_from(
        [datatypes.ANY, datatypes.Selector(numa=0), datatypes.Selector(least_memory=40 * GIB)]
    ),
)
def test_fits_agrees_with_find(machine, arrivals, wanted, near, selector):
    held = ()
    for number, (pod, _) in enumerate(arrivals):
        placed = place_or_none(datatypes.NodeDevices(machine, held), pod) or {}
        held += pod_placement.holdings(pod.containers, placed, f"pod-{number}")
    pod = dataclasses.replace(wanted, nearness=near, selector=selector)
    free = free_capacity.of(datatypes.NodeDevices(machine, held))
    assert pod_placement.fits(free, pod) == (pod_placement.find(free, pod) is not None)
