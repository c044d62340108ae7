"""The index agrees with a direct search of each node."""

import onebyone
import pytest
import schedulerpods as pods
from allocator_nodes import cube_mesh, device, pcie
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.allocator import placement_explanation
from pyvgpu.controller.scheduler import answers, cache, extender, index, pod_request

NAMES = [f"n{number}" for number in range(4)]
MACHINES = [
    pods.published(1),
    pods.published(2),
    pods.published(devices=pcie(4)),
    pods.published(devices=cube_mesh()),
    pods.published(devices=(device(0, cordoned=True), device(1, 16))),
    pods.published(devices=(device(0, reservable=150), device(1, reservable=300))),
    None,
]


def ask(name, vcore=50, size=8, notes=None, **more):
    return pod_request.read(
        pods.pod(name, pods.container(vcore=vcore, size=size), notes=notes, **more)
    )


SHAPES = [
    ask("share", 30),
    ask("half", 50, 20),
    ask("whole", 100, None),
    ask("pair", 200, None),
    ask("linked", 200, None, {"pyvgpu.io/topology-policy": "nvlink"}),
    ask("small", 10, 1, {"pyvgpu.io/device-memory": "40Gi"}),
    pod_request.read(pods.pod("two", pods.container("a", 70), pods.container("b", 60))),
    pod_request.read(pods.pod("init", pods.container("b", 40), init=[pods.container("a", 90)])),
]

steps = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NAMES), st.sampled_from(MACHINES)),
    st.tuples(st.just("gone"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("reserve"), st.sampled_from(NAMES), st.sampled_from(SHAPES)),
    st.tuples(st.just("release"), st.integers(0, 10), st.none()),
    st.tuples(st.just("ask"), st.none(), st.sampled_from(SHAPES)),
)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(steps, min_size=1, max_size=40), st.integers(1, 4))
def test_the_index_agrees_with_a_direct_search(taken, shapes):
    known = cache.Cache()
    made = index.Index(known.nodes)
    known.listen(made.changed)
    live = []
    for number, (what, first, second) in enumerate(taken):
        if what == "node":
            known.see_node(first, second)
        elif what == "gone":
            known.forget_node(first)
        elif what == "reserve":
            pod = pod_request.read(pods.pod(f"p{number}"))
            pod = type(pod)(pod.key, pod.uid, second.shape, second.names)
            try:
                known.reserve(pod, first, 0)
            except placement_explanation.Refused:
                continue
            live.append(pod.uid)
        elif what == "release" and live:
            known.release(live.pop(first % len(live)))
        elif what == "ask":
            compare(known, made, second)
    for pod in SHAPES[:shapes]:
        compare(known, made, pod)


def compare(known, made, pod):
    found = made.results_of(pod.shape)
    for name in NAMES:
        info = known.nodes.get(name)
        wanted = pod_request.pod_of(pod.shape, info.unit or 1) if info else None
        expected = onebyone.evaluate(info, wanted) if info else index.RefusalReason.UNKNOWN
        assert found.why(name) is expected, name
        for policy in pod_request.NodePolicy:
            (points,) = made.score(pod.shape, policy, [name])
            fits = expected is None
            assert points == (onebyone.score(info, wanted, policy) if fits else 0)
            fresh = index.Index(known.nodes)
            assert list(fresh.score(pod.shape, policy, [name])) == [points]


@pytest.mark.parametrize(
    ("published", "pod", "why"),
    [
        pytest.param(None, SHAPES[0], index.RefusalReason.UNKNOWN, id="no agent"),
        pytest.param(
            pods.published(devices=(device(0, unhealthy="XID 79"), device(1, cordoned=True))),
            SHAPES[0],
            index.RefusalReason.CLOSED,
            id="no usable device",
        ),
        pytest.param(
            pods.published(),
            ask("x", notes={"pyvgpu.io/device-models": "T4"}),
            index.RefusalReason.CLOSED,
            id="no device of that model",
        ),
        pytest.param(pods.published(size=4), SHAPES[0], index.RefusalReason.SMALL, id="too small"),
        pytest.param(
            pods.published(1), SHAPES[3], index.RefusalReason.FEWER, id="too few devices"
        ),
        pytest.param(
            pods.published(devices=pcie(2)), SHAPES[4], index.RefusalReason.APART, id="no NVLink"
        ),
        pytest.param(
            pods.published(1), SHAPES[6], index.RefusalReason.TOGETHER, id="all together"
        ),
    ],
)
def test_why_an_empty_node_is_refused(published, pod, why):
    known = cache.Cache()
    made = extender.Decider(known)
    known.see_node("n0", published)
    assert made.filter(pod, ["n0"], 0).failed == {why.value: ["n0"]}


@pytest.mark.parametrize(
    ("taken", "pod", "why"),
    [
        pytest.param([(0, 90), (1, 80)], SHAPES[0], index.RefusalReason.TAKEN, id="all are taken"),
        pytest.param(
            [(0, 10)], SHAPES[3], index.RefusalReason.FEW, id="one is free, two are requested"
        ),
    ],
)
def test_why_a_node_in_use_is_refused(taken, pod, why):
    known = cache.Cache()
    made = extender.Decider(known)
    shares = {f"uid-{number}": {"main": (pods.share(number, vcore),)} for number, vcore in taken}
    known.see_node("n0", pods.published(placed=shares))
    assert made.filter(pod, ["n0"], 0).failed == {why.value: ["n0"]}
    assert why.passes


def test_a_damaged_annotation_is_a_reason_of_its_own():
    known = cache.Cache()
    known.see_node("n0", None, "is damaged")
    found = extender.Decider(known).filter(SHAPES[0], ["n0", "n1"], 0)
    assert found.failed == {
        index.RefusalReason.DAMAGED.value: ["n0"],
        index.RefusalReason.UNKNOWN.value: ["n1"],
    }


def test_more_shapes_and_more_changes_than_are_kept():
    known = cache.Cache()
    made = index.Index(known.nodes)
    known.listen(made.changed)
    many = [ask(f"p{at}", vcore=1 + at % 99, size=1 + at // 99) for at in range(100)]
    for pod in many:
        made.results_of(pod.shape)
    assert len(list(made.shapes())) == index.MOST_SHAPES
    for number in range(3000):
        known.see_node("n0", MACHINES[number % 2])
        if number % 500 == 0:
            compare(known, made, SHAPES[3])
    compare(known, made, SHAPES[3])
    compare(known, made, many[0])


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param("binpack", ["shared", "used", "empty"], id="binpack"),
        pytest.param("spread", ["empty", "used", "shared"], id="spread"),
    ],
)
def test_policies_choose_among_nodes(policy, order):
    known = cache.Cache()
    made = extender.Decider(known)
    placed = {
        "empty": {},
        "used": {"u": {"main": (pods.share(0, 100, 80),)}},
        "shared": {"u": {"main": (pods.share(0, 60, 40),)}, "v": {"m": (pods.share(1, 90),)}},
    }
    for name, found in placed.items():
        known.see_node(name, pods.published(placed=found))
    pod = ask("x", 20, notes={"pyvgpu.io/placement": policy})
    scores = dict(zip(placed, made.prioritize(pod, list(placed), 0), strict=True))
    assert sorted(placed, key=scores.__getitem__, reverse=True) == order
    assert len(set(scores.values())) == 3


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_a_barely_used_node_scores_unlike_an_empty_one(policy):
    known = cache.Cache()
    made = extender.Decider(known)
    known.see_node("empty", pods.published(8))
    known.see_node("used", pods.published(8, placed={"u": {"main": (pods.share(0, 1, 1),)}}))
    pod = ask("x", 20, notes={"pyvgpu.io/placement": policy})
    empty, used = made.prioritize(pod, ["empty", "used"], 0)
    assert (empty > used) == (policy == "spread")
    assert empty != used


def test_topology_prefers_the_node_with_the_nearest_devices():
    known = cache.Cache()
    made = extender.Decider(known)
    machines = {
        "mesh": cube_mesh(),
        "switch": pcie(2),
        "far": pcie(2, per_switch=1, per_numa=1),
        "none": (device(0),),
    }
    for name, found in machines.items():
        known.see_node(name, pods.published(devices=found))
    pod = ask("x", 200, None, notes={"pyvgpu.io/placement": "topology"})
    assert list(made.prioritize(pod, list(machines), 0)) == [10, 8, 2, 0]


def test_the_only_fitting_node_is_reserved_for_a_while():
    known = cache.Cache()
    made = extender.Decider(known)
    known.see_node("n0", pods.published(1))
    one, two = ask("one", 60), ask("two", 60)
    assert made.filter(one, ["n0"], 0).fitting == ["n0"]
    assert made.filter(two, ["n0"], 1).fitting == []
    assert made.filter(one, ["n0"], 1).fitting == ["n0"]
    seconds = known.settings.expect_seconds
    assert made.filter(two, ["n0"], 1 + seconds).fitting == ["n0"]
    assert made.filter(one, ["n0"], 1 + seconds).fitting == []


def test_the_best_node_is_reserved_until_the_pod_is_bound_elsewhere():
    known = cache.Cache()
    made = extender.Decider(known)
    for name in ("n0", "n1"):
        known.see_node(name, pods.published(1))
    one = ask("one", 60)
    assert sorted(made.filter(one, ["n0", "n1"], 0).fitting) == ["n0", "n1"]
    made.prioritize(one, ["n0", "n1"], 0)
    assert made.filter(ask("two", 60), ["n0", "n1"], 0).fitting == ["n1"]
    known.release("uid-two")
    known.reserve(one, "n1", 0)
    assert made.filter(ask("two", 60), ["n0", "n1"], 0).fitting == ["n0"]


def test_reasons_may_be_left_out_where_a_node_fits():
    known = cache.Cache()
    made = extender.Decider(known)
    known.see_node("n0", pods.published(1))
    names = ["n0", "n1"]
    fits, large = ask("one", 60), ask("two", 200, None)
    assert made.filter(fits, names, 0, every_reason=False) == answers.FilterResult(["n0"])
    assert made.filter(fits, names, 0).failed == {index.RefusalReason.UNKNOWN.value: ["n1"]}
    assert len(made.filter(large, names, 0, every_reason=False).failed) == 2


def test_an_invalid_request_is_refused_everywhere_with_the_rule():
    known = cache.Cache()
    made = extender.Decider(known)
    pod = ask("x", 150)
    (said,) = made.filter(pod, ["n0", "n1"], 0).failed
    assert "above 100 it must be a multiple of 100" in said
    assert list(made.prioritize(pod, ["n0", "n1"], 0)) == [0, 0]
