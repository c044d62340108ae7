"""Choice of devices for containers by policy, and the reasons for refusals."""

import dataclasses

import allocator_nodes as machines
import pytest
from allocator_nodes import GIB, app, device, held, init, pcie, pod, sidecar, uuid, with_links

from pyvgpu.allocator import datatypes, free_capacity, placement_explanation, pod_placement

SPREAD = datatypes.Packing.SPREAD


def indices(placed, container="main"):
    return [int(share.uuid[4:12], 16) for share in placed[container]]


def placed_on(devices, held=(), **fields):
    """Return the devices chosen for a pod of one container."""
    wanted = pod(app(**fields.pop("need", {})), **fields)
    return indices(pod_placement.place(datatypes.NodeDevices(devices, tuple(held)), wanted))


WHOLE = {"vcore": 100, "size": 0}


@pytest.mark.parametrize(
    ("taken", "fields", "expected"),
    [
        pytest.param([], {}, [0], id="the first of equals"),
        pytest.param([held(1, 40, 8)], {}, [1], id="binpack: a device in use"),
        pytest.param([held(1, 40, 8), held(2, 50, 8)], {}, [2], id="binpack: the tightest"),
        pytest.param([held(1, 50, 8), held(2, 50, 9)], {}, [2], id="binpack: tightest memory"),
        pytest.param([held(1, 60, 8)], {}, [0], id="not without enough vcore"),
        pytest.param([held(1, 10, 75)], {}, [0], id="not without enough memory"),
        pytest.param([held(0, 40, 8)], {"packing": SPREAD}, [1], id="spread: an unused device"),
        pytest.param(
            [held(i, 40 - i, 8) for i in range(4)], {"packing": SPREAD}, [3], id="spread: most"
        ),
        pytest.param([held(0, 1, 1)], {"need": WHOLE}, [1], id="whole: an unused device"),
        pytest.param([], {"need": {**WHOLE, "count": 4}}, [0, 1, 2, 3], id="all of them"),
    ],
)
def test_policies_on_four_equal_devices(taken, fields, expected):
    assert placed_on(tuple(device(i) for i in range(4)), taken, **fields) == expected


@pytest.mark.parametrize(
    ("taken", "need", "expected"),
    [
        pytest.param([], {"count": 2}, [0, 1], id="two of one switch"),
        pytest.param([held(0, 1, 1)], {"count": 2}, [2, 3], id="two of a switch that is whole"),
        pytest.param(
            [held(0, 1, 1)], {}, [1], id="one: from the switch that is broken up already"
        ),
        pytest.param(
            [held(i, 1, 1) for i in (0, 1, 2)], {}, [3], id="one: from the smaller NUMA node"
        ),
        pytest.param(
            [held(i, 1, 1) for i in (0, 2, 4, 6)], {"count": 2}, [1, 3], id="two of a NUMA node"
        ),
        pytest.param(
            [held(i, 1, 1) for i in (0, 1, 2, 5)], {"count": 2}, [6, 7], id="the pair that is left"
        ),
        pytest.param([], {"count": 4}, [0, 1, 2, 3], id="four of a NUMA node"),
        pytest.param([held(1, 1, 1)], {"count": 4}, [4, 5, 6, 7], id="the node that is whole"),
        pytest.param(
            [held(1, 1, 1), held(5, 1, 1)],
            {"count": 4},
            [2, 3, 6, 7],
            id="two pairs rather than three and one",
        ),
    ],
)
def test_whole_devices_on_pcie_stay_together_and_leave_groups_whole(taken, need, expected):
    assert placed_on(pcie(8), taken, need={**WHOLE, **need}) == expected


@pytest.mark.parametrize(
    ("taken", "count", "expected"),
    [
        pytest.param((), 2, [0, 3], id="a pair with two links"),
        pytest.param((0, 3), 2, [1, 2], id="another such pair"),
        pytest.param((), 4, [0, 1, 2, 3], id="a quad, each linked to each"),
        pytest.param((0,), 4, [4, 5, 6, 7], id="the other quad"),
        pytest.param((1, 2, 3, 5, 6, 7), 2, [0, 4], id="NVLink across NUMA nodes"),
    ],
)
def test_nvlink_is_preferred_to_everything(taken, count, expected):
    used = [held(index, 1, 1) for index in taken]
    found = placed_on(machines.cube_mesh(), used, need={**WHOLE, "count": count})
    assert found == expected


def test_a_share_on_an_unused_device_keeps_pairs_free():
    assert placed_on(pcie(8), [held(4, 100, 80)]) == [5]


def test_shares_of_several_devices_are_close_and_packed():
    devices = pcie(4)
    assert placed_on(devices, [held(3, 20, 8)], need={"count": 2}) == [2, 3]
    assert placed_on(devices, [held(3, 60, 8)], need={"count": 2}) == [0, 1]


def test_nvlink_or_nothing():
    wanted = pod(app(vcore=100, size=0, count=2), nearness=datatypes.Nearness.NVLINK)
    mesh = machines.cube_mesh()
    used = tuple(held(index, 100, 16) for index in (1, 2, 3, 4, 5, 6))
    with pytest.raises(
        placement_explanation.Refused, match=r"there are no 2 devices.*all linked by NVLink"
    ):
        pod_placement.place(datatypes.NodeDevices(mesh, used), wanted)
    assert indices(pod_placement.place(datatypes.NodeDevices(mesh, used[1:]), wanted)) == [0, 1]


def test_one_numa_node_or_nothing():
    wanted = pod(app(vcore=100, size=0, count=2), nearness=datatypes.Nearness.NUMA)
    used = [held(index, 100, 80) for index in (1, 2, 3, 5, 6, 7)]
    with pytest.raises(placement_explanation.Refused, match=r"all of one NUMA node"):
        pod_placement.place(datatypes.NodeDevices(pcie(8), tuple(used)), wanted)
    assert indices(
        pod_placement.place(datatypes.NodeDevices(pcie(8), tuple(used[1:])), wanted)
    ) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "selector", "said"),
    [
        ({"unhealthy": "XID 79, it has fallen off the bus"}, {}, "is unhealthy: XID 79"),
        ({"cordoned": True}, {}, "is cordoned"),
        ({"allocated_by": "dra"}, {}, "is allocated by dra"),
        ({"model": "Tesla T4"}, {"models": {"h100"}}, "is a Tesla T4, not h100"),
        ({"model": "Tesla T4"}, {"not_models": {"t4"}}, "is a Tesla T4, which the pod excludes"),
        (
            {"compute_class": "old"},
            {"classes": {"new", "fast"}},
            "is of class old, not fast or new",
        ),
        ({}, {"classes": {"fast"}}, "is of class none, not fast"),
        ({}, {"uuids": {uuid(7)}}, "is none of the devices that the pod names"),
        ({}, {"not_uuids": {uuid(0)}}, "is excluded by the pod"),
        ({"numa": 1}, {"numa": 0}, "is of NUMA node 1, not 0"),
        (
            {},
            {"least_memory": 90 * GIB},
            "has 80GiB in total, the pod requests a device of at least 90GiB",
        ),
        ({"least_bytes": 9 * GIB}, {}, "needs 9GiB for a usable share, 8GiB are asked"),
    ],
)
def test_an_unsuitable_device_is_refused_with_the_reason(fields, selector, said):
    sets = {key: frozenset(v) if isinstance(v, set) else v for key, v in selector.items()}
    wanted = pod(selector=datatypes.Selector(**sets))
    bad = device(0, **fields)
    with pytest.raises(placement_explanation.Refused) as refused:
        pod_placement.place(datatypes.NodeDevices((bad,)), wanted)
    assert str(refused.value).startswith(f"gpu0 {said}")
    good = device(1, model="NVIDIA H100", compute_class="fast", size=100, numa=0)
    if not selector.get("uuids"):
        assert indices(pod_placement.place(datatypes.NodeDevices((bad, good)), wanted)) == [1]


@pytest.mark.parametrize(
    ("taken", "need", "said"),
    [
        ([held(0, 60, 8)], {}, "gpu0 needs 50 vcore, has 40 free (team/other/main 60 vcore 8GiB)"),
        ([held(0, 9, 75)], {}, "gpu0 needs 8GiB, has 5GiB free (team/other/main 9 vcore 75GiB)"),
        (
            [held(0, 1, 1)],
            WHOLE,
            "gpu0 is requested as a whole, but is shared: team/other/main 1 vcore",
        ),
        ([], {"size": 81}, "gpu0 has 80GiB in all, 81GiB of one device are asked"),
        ([], {"vcore": 100, "size": 81}, "gpu0 has 80GiB in all, 81GiB of one device are asked"),
        ([], {"count": 2}, "main asks for 2 devices, only 1 fits"),
    ],
)
def test_a_refusal_names_what_is_free_and_the_holders(taken, need, said):
    with pytest.raises(placement_explanation.Refused) as refused:
        pod_placement.place(datatypes.NodeDevices((device(0),), tuple(taken)), pod(app(**need)))
    assert str(refused.value).startswith(said)


def test_a_refusal_has_a_line_for_each_device():
    node = datatypes.NodeDevices((device(0, cordoned=True), device(1)), (held(1, 70, 8),))
    with pytest.raises(placement_explanation.Refused) as refused:
        pod_placement.place(node, pod())
    assert [(one.uuid, one.container) for one in refused.value.reasons] == [
        (uuid(0), "main"),
        (uuid(1), "main"),
    ]


def test_a_node_without_devices_is_refused():
    with pytest.raises(placement_explanation.Refused, match="the node has no device"):
        pod_placement.place(datatypes.NodeDevices(()), pod())


def test_refusal_of_containers_that_fit_only_alone():
    node = datatypes.NodeDevices((device(0), device(1)), (held(0, 40, 8), held(1, 40, 8)))
    with pytest.raises(
        placement_explanation.Refused, match=r"alone, but no placement was found.*60 vcore"
    ):
        pod_placement.place(node, pod(app("a", 60), app("b", 60), app("c", 60)))


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param((init(vcore=50), app(vcore=50)), {"init": [0], "main": [0]}, id="init = app"),
        pytest.param((init(vcore=70), app(vcore=50)), {"init": [0], "main": [0]}, id="init > app"),
        pytest.param((init(vcore=30), app(vcore=50)), {"init": [0], "main": [0]}, id="init < app"),
        pytest.param((init(vcore=30),), {"init": [0]}, id="init only"),
        pytest.param(
            (init("i1", 100, 0), init("i2", 20), app(vcore=60)),
            {"i1": [0], "i2": [0], "main": [0]},
            id="one init after the other, a whole device first",
        ),
        pytest.param(
            (sidecar(vcore=60), init(vcore=60), app(vcore=40)),
            {"side": [0], "init": [1], "main": [0]},
            id="an init container beside a sidecar",
        ),
        pytest.param(
            (init(vcore=60), sidecar(vcore=60), app(vcore=40)),
            {"side": [0], "init": [0], "main": [0]},
            id="an init container before the sidecar",
        ),
        pytest.param(
            (app("a", 60), app("b", 50), app("c", 40)),
            {"a": [0], "b": [1], "c": [0]},
            id="several apps, packed",
        ),
        pytest.param(
            (init(vcore=100, size=0, count=2), app(vcore=100, size=0)),
            {"init": [0, 1], "main": [0]},
            id="two devices for init, one of them afterwards",
        ),
    ],
)
def test_containers_that_never_run_concurrently_share_a_device(containers, expected):
    devices = tuple(device(i) for i in range(3))
    placed = pod_placement.place(datatypes.NodeDevices(devices), pod(*containers))
    assert {name: indices(placed, name) for name in placed} == expected


def test_what_a_pod_holds_is_its_peak_on_each_device():
    containers = (init(vcore=70, size=4), app("a", 30, 8), app("b", 30, 8))
    placed = pod_placement.place(datatypes.NodeDevices((device(0),)), pod(*containers))
    assert pod_placement.holdings(containers, placed, "team/pod") == (
        datatypes.Holding(datatypes.NodeShare(uuid(0), 70, 16 * GIB), "team/pod"),
    )


def test_backtracking_finds_what_greed_does_not():
    """The tightest device for the first container is the only one that fits the second."""
    node = datatypes.NodeDevices((device(0), device(1)), (held(0, 40, 10), held(1, 1, 60)))
    placed = pod_placement.place(node, pod(app("a", 50, 15), app("b", 40, 60)))
    assert indices(placed, "a") == [1]
    assert indices(placed, "b") == [0]


def test_abandoned_attempts_reserve_nothing():
    """Each of the three devices alone fits the first container."""
    used = (held(0, 40, 10), held(1, 39, 60), held(2, 38, 60))
    wanted = pod(app("a", 50, 15), app("b", 45, 15), app("c", 40, 60))
    placed = pod_placement.place(
        datatypes.NodeDevices(tuple(device(i) for i in range(3)), used), wanted
    )
    assert [indices(placed, name) for name in "abc"] == [[1], [2], [0]]


def test_the_longest_distance_counts_before_the_sum():
    """A collective operation is as fast as its slowest path."""

    def link(one, other):
        if {one, other} in ({0, 1}, {1, 2}):
            return datatypes.DeviceLink(datatypes.LinkPath.SYSTEM, 4)
        return datatypes.DeviceLink(
            datatypes.LinkPath.NUMA if min(one, other) > 2 else datatypes.LinkPath.SYSTEM
        )

    devices = with_links([device(index) for index in range(6)], link)
    assert placed_on(devices, need={**WHOLE, "count": 3}) == [3, 4, 5]
    assert placed_on(devices, need={**WHOLE, "count": 2}) == [0, 1]


def test_of_equal_pairs_the_one_that_fragments_least_is_chosen():
    used = [held(index, 1, 1) for index in (3, 6, 7)]
    assert placed_on(pcie(8, per_switch=1), used, need={**WHOLE, "count": 2}) == [4, 5]


def test_a_whole_device_includes_all_its_memory():
    (share,) = pod_placement.place(
        datatypes.NodeDevices((device(0),)), pod(app(vcore=100, size=1))
    )["main"]
    assert share == datatypes.NodeShare(uuid(0), 100, 80 * GIB)


def test_holdings_of_a_missing_device_are_ignored():
    assert placed_on((device(0),), [held(5, 100, 80)]) == [0]


def test_too_many_devices_to_enumerate_are_still_chosen_close():
    found = placed_on(pcie(48), [held(0, 1, 1)], need={**WHOLE, "count": 12})
    assert len(found) == 12
    assert len({index // 4 for index in found}) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"vcore": 60}, "main: asks for 50 vcore and 8GiB, 60 vcore and 8GiB were chosen"),
        ({"vmemory": GIB}, "main: asks for 50 vcore and 8GiB, 50 vcore and 1GiB were chosen"),
        ({"uuid": uuid(9)}, f"main: {uuid(9)} is not a device of this node"),
        ({"uuid": uuid(1)}, "gpu1 is cordoned"),
        ({"uuid": uuid(2)}, "gpu2 has 20 vcore and 72GiB free, 50 vcore and 8GiB were chosen"),
        ({"uuid": uuid(3)}, "gpu3 has 90 vcore and 5GiB free, 50 vcore and 8GiB were chosen"),
    ],
)
def test_a_choice_of_another_scheduler_is_checked(change, said):
    devices = (device(0), device(1, cordoned=True), device(2), device(3))
    node = datatypes.NodeDevices(devices, (held(2, 80, 8), held(3, 10, 75)))
    share = dataclasses.replace(datatypes.NodeShare(uuid(0), 50, 8 * GIB), **change)
    assert pod_placement.problem(node, pod(), {"main": (share,)}) == said


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({}, "main: asks for 1 devices, 0 were chosen"),
        (
            {"main": 2 * [datatypes.NodeShare(uuid(0), 50, 8 * GIB)]},
            "main: asks for 1 devices, 2 were",
        ),
    ],
)
def test_a_choice_with_a_wrong_number_of_devices_is_refused(shares, said):
    node = datatypes.NodeDevices((device(0), device(1)))
    assert pod_placement.problem(node, pod(), shares).startswith(said)


def test_shares_of_concurrent_containers_are_added_up():
    node = datatypes.NodeDevices((device(0),))
    two = pod(app("a", 60), app("b", 60))
    shares = {name: (datatypes.NodeShare(uuid(0), 60, 8 * GIB),) for name in "ab"}
    assert pod_placement.problem(node, two, shares).startswith("gpu0 has 100 vcore")
    one_after_the_other = pod(init("a", 60), app("b", 60))
    assert pod_placement.problem(node, one_after_the_other, shares) == ""


def mig_device(number):
    """Return a MIG device in place of device *number*."""
    found = device(number)
    return dataclasses.replace(found, uuid=f"MIG-{found.uuid[4:]}", model="H100 MIG 3g.40gb")


def test_single_device_may_be_a_mig_device():
    assert placed_on((mig_device(0), device(1))) == [0]
    assert placed_on((mig_device(0), device(1)), need=WHOLE) == [0]


def test_several_devices_are_never_mig_devices():
    mixed = (mig_device(0), device(1), device(2))
    two = {"need": {**WHOLE, "count": 2}}
    assert placed_on(mixed, **two) == [1, 2]
    node = datatypes.NodeDevices((mig_device(0), mig_device(1), device(2)))
    wanted = pod(app(**two["need"]))
    assert not pod_placement.fits(free_capacity.of(node), wanted)
    with pytest.raises(
        placement_explanation.Refused, match="of which a process sees only one"
    ) as caught:
        pod_placement.place(node, wanted)
    assert "asks for 2 devices, only 1 fits" in str(caught.value)


def test_shares_of_several_mig_devices_chosen_elsewhere_are_not_valid():
    node = datatypes.NodeDevices((mig_device(0), mig_device(1)))
    wanted = pod(app(vcore=30, size=4, count=2))
    chosen = {"main": tuple(datatypes.NodeShare(each.uuid, 30, 4 * GIB) for each in node.devices)}
    assert "is a MIG device" in pod_placement.problem(node, wanted, chosen)
