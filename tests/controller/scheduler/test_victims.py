"""Which pods are evicted for one of higher priority, and that only it gets what they free."""

import itertools

import pytest
import schedulerpods as pods
from allocator_nodes import pcie
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.allocator import datatypes, free_capacity, pod_placement
from pyvgpu.controller.scheduler import cache, extender, pod_request, victims

BINPACK = datatypes.Packing.BINPACK


def ask(name="high", vcore=50, size=8, priority=100, **more):
    thing = pods.pod(name, pods.container(vcore=vcore, size=size), priority=priority, **more)
    return pod_request.read(thing)


def running(name, number, vcore=60, size=8, priority=0, node="n0", age=0, leaving=False):
    thing = pods.pod(name, pods.container(vcore=vcore, size=size), priority=priority)
    thing["metadata"]["creationTimestamp"] = f"2026-11-22T03:{age:02}:00Z"
    if leaving:
        thing["metadata"]["deletionTimestamp"] = "2026-11-22T04:00:00Z"
    shares = {"main": (pods.share(number, vcore, size if size is not None else 80),)}
    return pod_request.read(pods.bind(thing, node, shares), (pods.KEY,))


def cluster(*those, devices=2, nodes=("n0",)):
    known = cache.Cache()
    for node in nodes:
        known.see_node(node, pods.published(devices=pcie(devices)))
    for pod in those:
        known.see_pod(pod.key, pod)
    return known, extender.Decider(known)


def chosen(known, pod, budgets=victims.NO_BUDGETS, going=(), node="n0"):
    plan = victims.choose(known.nodes[node], pod, BINPACK, budgets, going)
    return (
        None if plan is None else sorted(victim.key.partition("/")[2] for victim in plan.victims)
    )


@pytest.mark.parametrize(
    ("those", "pod", "expected"),
    [
        pytest.param(
            [running("a", 0), running("b", 1, age=5)], ask(), ["b"], id="one of two: the younger"
        ),
        pytest.param(
            [running("a", 0, priority=5), running("b", 1)], ask(), ["b"], id="of lower priority"
        ),
        pytest.param(
            [running("a", 0, 70), running("b", 1, 30), running("c", 1, 30, age=9)],
            ask(vcore=60),
            ["c"],
            id="the fewest that will do, on one device",
        ),
        pytest.param(
            [running("a", 0, 90, priority=5), running("b", 1, 45), running("c", 1, 45)],
            ask(vcore=90),
            ["b", "c"],
            id="two of lower priority rather than one of higher",
        ),
        pytest.param(
            [running("a", 0, 90), running("b", 1, 45), running("c", 1, 45)],
            ask(vcore=90),
            ["a"],
            id="one rather than two",
        ),
        pytest.param(
            [running("a", 0), running("b", 1, priority=100)], ask(), ["a"], id="never its equals"
        ),
        pytest.param(
            [running("a", 0, priority=100), running("b", 1, priority=200)], ask(), None, id="none"
        ),
        pytest.param([running("a", 0, 30)], ask(), [], id="no victim where there is room"),
        pytest.param(
            [running("a", 0), running("b", 1, leaving=True)],
            ask(),
            [],
            id="no victim where one is terminating",
        ),
        pytest.param(
            [running("a", 0, 10), running("b", 1, 10)],
            ask(vcore=200, size=None),
            ["a", "b"],
            id="whole devices",
        ),
        pytest.param([running("a", 0)], ask(vcore=300, size=None), None, id="never enough"),
        pytest.param(
            [running("a", 0, 20, 70), running("b", 1, 20, 70)],
            ask(vcore=20, size=40),
            ["a"],
            id="for memory",
        ),
    ],
)
def test_chooses_the_cheapest_victims(those, pod, expected):
    known, _ = cluster(*those)
    assert chosen(known, pod) == expected


def test_budgets_limit_the_victims():
    known, _ = cluster(running("a", 0), running("b", 1, age=5))
    budgets = victims.Budgets(of=lambda pod: [f"of-{pod.key}"], allowed={"of-team/a": 1})
    assert chosen(known, ask(), budgets) == ["a"]
    assert chosen(known, ask(), victims.Budgets(protected=frozenset({"uid-b"}))) == ["a"]
    assert chosen(known, ask(), victims.Budgets(of=lambda pod: ["both"])) is None


def test_a_budget_of_one_eviction_does_not_permit_two():
    known, _ = cluster(running("a", 0, 45), running("b", 0, 45), running("c", 1, 95, priority=5))
    budgets = victims.Budgets(of=lambda pod: ["pair"] * (pod.key != "team/c"), allowed={"pair": 1})
    assert chosen(known, ask(vcore=90), budgets) == ["c"]
    budgets.allowed["pair"] = 2
    assert chosen(known, ask(vcore=90), budgets) == ["a", "b"]


def test_evicting_one_pod_joins_fragments_and_the_device_is_claimed():
    """60 of each of two devices are in use: the node's total suffices, and no single device."""
    known, made = cluster(running("a", 0), running("b", 1))
    high = ask()
    known.see_pod(high.key, high)
    assert made.filter(high, ["n0"], 0).fitting == []
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, 0)
    assert len(plan.victims) == 1
    assert made.preempt(high, ["n0"], victims.NO_BUDGETS, 1) is None, "it waits already"
    (victim,) = plan.victims
    assert made.filter(high, ["n0"], 1).fitting == []
    known.see_pod(victim.key, None)
    assert made.filter(ask("other", 60), ["n0"], 2).fitting == [], "another pod"
    assert made.filter(high, ["n0"], 2).fitting == ["n0"]
    assert known.reserve(high, "n0", 2) == plan.shares


def test_an_unused_claim_expires():
    known, made = cluster(running("a", 0), running("b", 1))
    high = ask()
    (victim,) = made.preempt(high, ["n0"], victims.NO_BUDGETS, 0).victims
    known.see_pod(victim.key, None)
    seconds = known.settings.nomination_seconds
    assert made.filter(ask("other", 60), ["n0"], seconds - 1).fitting == []
    assert made.filter(ask("other", 60), ["n0"], seconds).fitting == ["n0"]


def test_a_victim_that_outlives_the_claim_no_longer_counts_as_terminating():
    known, made = cluster(running("a", 0), running("b", 1, priority=5))
    high, seconds = ask(), known.settings.nomination_seconds
    known.see_pod(high.key, high)
    assert made.filter(high, ["n0"], 0).fitting == []
    assert [
        victim.key for victim in made.preempt(high, ["n0"], victims.NO_BUDGETS, 0).victims
    ] == ["team/a"]
    known.see_pod("team/a", running("a", 0, leaving=True))
    assert made.freed(seconds - 1) == []
    assert made.in_vain(high) == ""
    assert made.freed(seconds) == [high], "kube-scheduler is to retry it"
    assert made.freed(seconds) == []
    assert made.in_vain(high) == "team/a on n0 did not end within 120 s"
    assert made.filter(high, ["n0"], seconds).fitting == []
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, seconds)
    assert [victim.key for victim in plan.victims] == ["team/b"]
    known.see_pod("team/b", None)
    assert made.filter(high, ["n0"], seconds + 1).fitting == ["n0"]


def test_preempting_before_the_periodic_check_ignores_an_overdue_victim_too():
    known, made = cluster(running("a", 0, leaving=True), running("b", 1))
    high, seconds = ask(), known.settings.nomination_seconds
    known.see_pod(high.key, high)
    assert made.preempt(high, ["n0"], victims.NO_BUDGETS, 0).victims == ()
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, seconds)
    assert plan is None, "its claim has not expired yet"
    known.expire(seconds)
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, seconds)
    assert [victim.key for victim in plan.victims] == ["team/b"]


def test_without_other_candidates_it_waits_for_the_same_victim_and_evicts_no_other():
    those = [running("a", 0, leaving=True), running("b", 1, priority=200), running("c", 2)]
    known, made = cluster(*those, devices=3)
    high, seconds = ask(vcore=200, size=None), known.settings.nomination_seconds
    known.see_pod(high.key, high)
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, 0)
    assert [victim.key for victim in plan.victims] == ["team/c"]
    known.see_pod("team/c", None)  # and a does not terminate
    known.see_pod("team/d", running("d", 2, 30))
    known.expire(seconds)
    assert made.preempt(high, ["n0"], victims.NO_BUDGETS, seconds) is None, "d would be in vain"
    known.see_pod("team/d", None)
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, seconds)
    assert plan.victims == ()
    known.see_pod("team/a", None)
    assert made.filter(high, ["n0"], seconds + 1).fitting == ["n0"]


def test_a_victim_that_was_never_evicted_does_not_count_as_overdue():
    known, made = cluster(running("a", 0), devices=1)
    high, seconds = ask(), known.settings.nomination_seconds
    known.see_pod(high.key, high)
    for now in (0, seconds):  # the victim was never evicted
        known.expire(now)
        plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, now)
        assert [victim.key for victim in plan.victims] == ["team/a"]
    assert made.in_vain(high) == ""


def test_the_schedulers_victims_that_do_not_terminate_are_supplemented():
    known, made = cluster(running("a", 0), running("b", 1))
    high, other, seconds = ask(), ask("other"), known.settings.nomination_seconds
    known.see_pod(high.key, high)
    plan = made.preempt(high, ["n0"], victims.NO_BUDGETS, 0)
    (gone,) = plan.victims
    known.see_pod(gone.key, running(gone.key[-1], int(gone.key[-1] == "b"), leaving=True))
    made.freed(seconds)
    left = "uid-a" if gone.uid == "uid-b" else "uid-b"
    found = made.spare(other, {"n0": (gone.uid,)}, victims.NO_BUDGETS, seconds)
    assert found == {"n0": (gone.uid, left)}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(ask(preemptionPolicy="Never"), id="never"),
        pytest.param(ask(priority=0), id="no pod has a lower priority"),
        pytest.param(ask(vcore=150), id="invalid request"),
        pytest.param(
            ask(notes={"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "1"}), id="of a gang"
        ),
    ],
)
def test_pods_that_must_not_preempt(pod):
    known, made = cluster(running("a", 0), running("b", 1))
    assert made.preempt(pod, ["n0", "n9"], victims.NO_BUDGETS, 0) is None
    assert known.find(pod.uid) is None


def test_prefers_the_node_with_the_cheapest_victims():
    those = [
        running("a", 0, 90, priority=5),
        running("b", 0, 45, node="n1"),
        running("c", 0, 45, node="n1"),
        running("d", 0, 90, node="n2"),
    ]
    known, made = cluster(*those, devices=1, nodes=("n0", "n1", "n2"))
    plan = made.preempt(ask(vcore=90), ["n0", "n1", "n2"], victims.NO_BUDGETS, 0)
    assert (plan.node, [victim.key for victim in plan.victims]) == ("n2", ["team/d"])


def test_the_schedulers_victims_are_supplemented_where_they_free_no_device():
    those = [running("a", 0), running("b", 1), running("c", 0, node="n1", priority=200)]
    known, made = cluster(*those, nodes=("n0", "n1"))
    proposed = {"n0": ("uid-cpu-only", "uid-a"), "n1": ("uid-c",), "n9": ("uid-x",)}
    pod = ask(vcore=100, size=None)
    assert made.spare(pod, proposed, victims.NO_BUDGETS, 0) == {
        "n0": ("uid-cpu-only", "uid-a"),
        "n1": ("uid-c",),
    }
    pod = ask(vcore=200, size=None)
    found = made.spare(pod, {**proposed, "n1": ()}, victims.NO_BUDGETS, 0)
    assert found == {"n0": ("uid-cpu-only", "uid-a", "uid-b")}
    assert known.find(pod.uid) is None


def test_for_a_pod_of_a_gang_only_the_scheduler_chooses_victims():
    _, made = cluster(running("a", 0), devices=1)
    one = ask(notes={"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "2"})
    assert made.preempt(one, ["n0"], victims.NO_BUDGETS, 0) is None
    proposed = {"n0": ("uid-a",)}
    assert made.spare(one, proposed, victims.NO_BUDGETS, 0) == proposed


def test_a_nomination_claims_what_the_victims_free():
    known, made = cluster(running("a", 0), devices=1)
    high = ask()
    assert made.spare(high, {"n0": ("uid-a",)}, victims.NO_BUDGETS, 0) == {"n0": ("uid-a",)}
    nominated = pod_request.read(
        {
            **pods.pod("high", pods.container(), priority=100),
            "status": {"nominatedNodeName": "n0"},
        }
    )
    assert not made.nominated(high, 1)
    assert made.nominated(nominated, 1)
    assert not made.nominated(nominated, 1)
    known.see_pod("team/a", None)
    assert made.filter(ask("other", 60), ["n0"], 1).fitting == []
    assert made.filter(nominated, ["n0"], 1).fitting == ["n0"]


def test_freed_returns_only_pods_that_may_fit():
    known, made = cluster(running("a", 0), devices=1, nodes=("n0", "n1"))
    known.see_pod("team/b", running("b", 0, node="n1"))
    low, high, large = ask("low", 50, priority=0), ask("high", 50), ask("large", 100, None)
    for pod in (low, high, large):
        known.see_pod(pod.key, pod)
        assert made.filter(pod, ["n0", "n1"], 0).fitting == []
    made.freed(0)
    assert made.freed(0) == []
    known.see_pod("team/a", running("a", 0, 40))
    assert [freed.key for freed in made.freed(0)] == ["team/high", "team/low"]
    assert made.freed(0) == []
    known.see_pod("team/large", None)
    known.see_pod("team/b", None)
    assert made.freed(0) == []


def test_a_refused_pod_that_the_cache_sees_later_is_requeued():
    """kube-scheduler asks about new pods before their watch event has come to the cache."""
    known, made = cluster(running("a", 0), devices=1)
    late, never = ask("late"), ask("never")
    for pod in (late, never):
        assert made.filter(pod, ["n0"], 0).fitting == []
    assert made.freed(0) == []
    known.see_pod(late.key, late)
    assert made.freed(extender.UNSEEN_SECONDS - 1) == []
    known.see_pod("team/a", None)
    assert {pod.key for pod in made.freed(extender.UNSEEN_SECONDS - 1)} == {late.key, never.key}
    for pod in (late, never):
        known.see_pod("team/a", running("a", 0))
        assert made.filter(pod, ["n0"], 0).fitting == []
    assert made.freed(extender.UNSEEN_SECONDS) == []
    known.see_pod("team/a", None)
    assert made.freed(extender.UNSEEN_SECONDS) == [late]


def test_a_preempting_pod_is_requeued_when_its_claim_is_free():
    known, made = cluster(running("a", 0), devices=1)
    high = ask()
    known.see_pod(high.key, high)
    assert made.filter(high, ["n0"], 0).fitting == []
    assert made.preempt(high, ["n0"], victims.NO_BUDGETS, 0)
    assert made.freed(0) == []
    known.see_pod("team/a", None)
    assert made.freed(0) == [high]


def test_the_rest_of_a_gang_is_requeued_when_room_is_reserved_for_all():
    known, made = cluster()
    notes = {"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "2"}
    one, two = ask("one", notes=notes), ask("two", notes=notes)
    known.see_pod(one.key, one)
    assert made.filter(one, ["n0"], 0).fitting == []
    made.freed(0)
    known.see_pod(two.key, two)
    assert made.filter(two, ["n0"], 0).fitting == ["n0"]
    assert made.freed(0) == [one]


tenants = st.tuples(
    st.integers(0, 2), st.sampled_from([20, 30, 45, 60, 90]), st.sampled_from([0, 0, 5, 100])
)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(tenants, max_size=8), st.sampled_from([40, 50, 70, 90, 100, 200]))
def test_no_smaller_set_of_no_higher_priority_suffices(taken, vcore):
    left = dict.fromkeys(range(3), 100)
    those = []
    for number, (device, part, priority) in enumerate(taken):
        if left[device] >= part:
            left[device] -= part
            those.append(running(f"p{number}", device, part, 4, priority, age=number))
    known, _ = cluster(*those, devices=3)
    pod = ask(vcore=vcore, size=None if vcore >= 100 else 4)
    info = known.nodes["n0"]
    wanted = info.wanted(pod, BINPACK)
    plan = victims.choose(info, pod, BINPACK)
    good = [
        subset
        for size in range(len(those) + 1)
        for subset in itertools.combinations(
            [candidate for candidate in those if candidate.priority < 100], size
        )
        if pod_placement.find(without(info, subset), wanted)
    ]
    if not good:
        assert plan is None
        return
    assert plan is not None
    best = min((max((victim.priority for victim in one), default=-1), len(one)) for one in good)
    assert best == (
        max((victim.priority for victim in plan.victims), default=-1),
        len(plan.victims),
    )
    assert (
        pod_placement.problem(
            datatypes.NodeDevices(
                info.devices, tuple(info.held({victim.uid for victim in plan.victims}))
            ),
            wanted,
            {"0": plan.shares["main"]},
        )
        == ""
    )


def without(info, pods_):
    gone = {pod.uid for pod in pods_}
    held = [
        tenant.held
        for uid, tenant in info.tenants.items()
        if uid not in gone and tenant.held is not None
    ]
    return free_capacity.of(
        datatypes.NodeDevices(info.devices, tuple(itertools.chain.from_iterable(held)))
    )
