"""Gang scheduling: all pods of a gang run, or none."""

import calls
import pytest
import schedulerpods as pods
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.controller.scheduler import cache, extender, gang_state, gangs, node_info, pod_request

NODES = ["n0", "n1", "n2"]
SECONDS = pod_request.GANG_SECONDS


def cluster(count=3, devices=1):
    known = cache.Cache()
    for name in NODES[:count]:
        known.see_node(name, pods.published(devices))
    return known, extender.Decider(known)


def member(name, gang="g", size=2, vcore=60, created="03:00:00", **more):
    notes = {"pyvgpu.io/gang": gang, "pyvgpu.io/gang-size": str(size)}
    thing = pods.pod(name, pods.container(vcore=vcore), notes=notes, **more)
    thing["metadata"]["creationTimestamp"] = f"2026-11-22T{created}Z"
    return thing


def ask(*args, **more):
    return pod_request.read(member(*args, **more))


def see(known, *those):
    for pod in those:
        known.see_pod(pod.key, pod)


def running(name, node, scheduled="03:00:05", phase="Running", **more):
    """A member that was bound at *scheduled*."""
    thing = pods.bind(member(name, **more), node, {"main": (pods.share(0, 60),)})
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": f"2026-11-22T{scheduled}Z",
    }
    thing["status"] = {"phase": phase, "conditions": [condition]}
    return pod_request.read(thing, (pods.KEY,))


def free(known):
    return {name: known.nodes[name].free[0].vcore for name in known.nodes}


def test_an_incomplete_gang_waits_and_reserves_nothing():
    known, made = cluster()
    one = ask("one")
    see(known, one)
    answer = made.filter(one, NODES, 0)
    assert answer.fitting == []
    assert answer.failed == {"waits for its gang: 1 of 2 pods are there": NODES}
    assert free(known) == dict.fromkeys(NODES, 100)


def test_a_complete_gang_is_reserved_as_a_whole():
    known, made = cluster()
    one, two = ask("one"), ask("two")
    see(known, one, two)
    (first,) = made.filter(one, NODES, 0).fitting
    assert sorted(free(known).values()) == [40, 40, 100]
    (second,) = made.filter(two, NODES, 1).fitting
    assert first != second
    assert sorted(free(known).values()) == [40, 40, 100]
    assert made.filter(one, NODES, 1).fitting == [first]


def test_without_room_for_all_nothing_is_reserved():
    known, made = cluster(1)
    one, two = ask("one"), ask("two")
    see(known, one, two)
    answer = made.filter(one, NODES[:1], 0)
    assert answer.failed == {"room for this pod, but not for its whole gang of 2": ["n0"]}
    assert free(known) == {"n0": 100}


def test_no_pod_is_bound_before_all_binds_have_arrived():
    known, made = cluster()
    one, two = ask("one"), ask("two")
    see(known, one, two)
    (first,), (second,) = (made.filter(pod, NODES, 0).fitting for pod in (one, two))
    assert made.arrive(one, first, 1) == SECONDS
    assert known.find(one.uid).state is node_info.Certainty.EXPECTED
    assert made.arrive(two, second, 2) is None
    assert made.arrive(one, first, 2) is None
    assert {known.find(pod.uid).state for pod in (one, two)} == {node_info.Certainty.BINDING}
    assert known.reserve(one, first, 2)
    assert known.expire(10 * SECONDS) == []


def test_reservations_expire_at_the_deadline():
    known, made = cluster()
    one, two = ask("one"), ask("two")
    see(known, one, two)
    (first,) = made.filter(one, NODES, 0).fitting
    made.arrive(one, first, 1)
    assert {expired.key for expired in known.expire(SECONDS)} == {"team/one", "team/two"}
    assert free(known) == dict.fromkeys(NODES, 100)
    with pytest.raises(errors.UnavailableError, match=f"{first} is no longer reserved for"):
        made.arrive(one, first, SECONDS)


def test_a_deleted_member_releases_the_whole_gang():
    known, made = cluster()
    one, two = ask("one"), ask("two")
    see(known, one, two)
    (first,) = made.filter(one, NODES, 0).fitting
    known.see_pod(two.key, None)
    with pytest.raises(errors.UnavailableError, match="a pod of the gang of team/one is gone"):
        made.arrive(one, first, 1)
    assert free(known) == dict.fromkeys(NODES, 100)


def test_a_pod_whose_node_the_scheduler_excludes_gets_another():
    known, made = cluster()
    one, two = ask("one"), ask("two")
    see(known, one, two)
    made.filter(one, NODES, 0)
    kept = known.find(two.uid).node
    others = [name for name in NODES if name != kept]
    (node,) = made.filter(two, others, 1).fitting
    assert node in others
    assert sorted(free(known).values()) == [40, 40, 100]


def test_pods_beyond_the_gang_size_come_after_the_others():
    known, made = cluster()
    late = ask("a", created="03:00:01")
    see(known, ask("one"), ask("two"), late)
    text = "its gang has 2 pods already"
    assert made.filter(late, NODES, 0).failed == {text: NODES}
    see(known, running("one", "n0"), running("two", "n1"))
    assert made.filter(late, NODES, 0).fitting == ["n2"]


def test_a_replacement_of_a_failed_pod_is_placed_alone():
    known, made = cluster()
    new = ask("three", created="03:10:00")
    see(known, running("one", "n0"), new)
    (node,) = made.filter(new, NODES, 0).fitting
    assert made.arrive(new, node, 0) is None
    assert made.broken(0) == made.broken(10 * SECONDS) == []


def test_succeeded_pods_count_as_members():
    known, made = cluster()
    see(known, running("one", "n0", phase="Succeeded"))
    new = ask("three", created="03:10:00")
    see(known, new)
    assert made.filter(new, NODES, 0).fitting
    assert free(known)["n0"] == 100 or known.find(new.uid).node == "n0"
    known.see_pod("team/one", None)
    assert set(known.gangs["team/g"]) == {new.uid}


def test_pods_bound_without_the_rest_of_the_gang_are_evicted():
    """This happens when a scheduler dies between two binds."""
    known, made = cluster(1)
    see(known, running("one", "n0"), ask("two"))
    assert made.broken(0) == []
    assert made.broken(SECONDS - 1) == []
    assert [pod.key for pod in made.broken(SECONDS)] == ["team/one"]
    known.see_pod("team/one", None)
    assert made.broken(2 * SECONDS) == []


@pytest.mark.parametrize(
    ("created", "torn"),
    [("03:00:04", True), ("03:00:05", True), ("03:00:06", False)],
    ids=["before", "in the second of the other's bind", "after"],
)
def test_a_pod_created_by_the_second_of_the_bind_existed(created, torn):
    known, made = cluster(1)
    see(known, running("one", "n0", scheduled="03:00:05"), ask("two", created=created))
    made.broken(0)
    assert bool(made.broken(SECONDS)) is torn


def test_a_pod_created_in_that_second_and_bound_in_time_evicts_no_pod():
    known, made = cluster()
    new = ask("two", created="03:00:05")
    see(known, running("one", "n0", scheduled="03:00:05"), new)
    assert made.broken(0) == []
    (node,) = made.filter(new, NODES, 1).fitting
    assert made.arrive(new, node, 1) is None
    assert made.broken(SECONDS + 1) == []


def test_a_gang_is_placed_with_its_largest_pods_first():
    known, made = cluster(2)
    small, large = ask("a", vcore=20), ask("b", vcore=90)
    other = ask("c", size=3, vcore=80)
    see(known, small, large, other)
    assert made.filter(small, NODES[:2], 0).fitting
    assert sorted(free(known).values()) == [0, 10]


def test_the_larger_of_two_gang_sizes_counts():
    found = gangs.members([ask("one", size=2), ask("two", size=3)])
    assert found.size == 3
    assert not found.complete


steps = st.lists(
    st.tuples(st.sampled_from(["filter", "arrive", "wait", "lose"]), st.integers(0, 5)),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(steps, st.integers(2, 3), st.integers(2, 3))
def test_two_gangs_never_wait_for_each_others_devices(taken, one, two):
    """In any order all of a gang are bound or none, and in the end one gang is bound."""
    known, made = cluster(3)
    those = [ask(f"a{i}", "a", one) for i in range(one)]
    those += [ask(f"b{i}", "b", two) for i in range(two)]
    see(known, *those)
    now = 0.0
    for what, which in taken:
        pod = those[which % len(those)]
        if what == "filter":
            made.filter(pod, NODES, now)
        elif what == "arrive":
            arrive(known, made, pod, now)
        elif what == "wait":
            now += SECONDS / 2
        elif what == "lose" and known.find(pod.uid) is None:
            known.see_pod(pod.key, None)
            see(known, pod)
        check(known, those)
    if not bound(known, those):
        now += 2 * SECONDS
        for pod in those[:one]:
            made.filter(pod, NODES, now)
        for pod in those[:one] * 2:
            arrive(known, made, pod, now)
        check(known, those)
        assert bound(known, those)


def arrive(known, made, pod, now):
    reservation = known.find(pod.uid)
    if reservation is not None:
        try:
            made.arrive(pod, reservation.node, now)
        except errors.UnavailableError:
            assert known.find(pod.uid) is None


def bound(known, those):
    return [pod for pod in those if is_bound(known, pod)]


def is_bound(known, pod):
    reservation = known.find(pod.uid)
    return reservation is not None and reservation.state is node_info.Certainty.BINDING


def check(known, those):
    assert all(room.vcore >= 0 for info in known.nodes.values() for room in info.free)
    for name in ("a", "b"):
        members = [pod for pod in those if pod.gang.name == f"team/{name}"]
        assert len({is_bound(known, pod) for pod in members}) == 1
        reservation = [known.find(pod.uid) is not None for pod in members]
        assert all(reservation) or not any(reservation)


@pytest.mark.slow
def test_a_large_gang_without_room_is_not_searched_again_for_each_of_its_pods():
    known, decider = cluster(3, 8)
    many = [ask(f"p{number}", size=300) for number in range(300)]
    see(known, *many)

    def ask_about_all():
        return [decider.filter(pod, NODES, 0.0).fitting for pod in many[1:]]

    _, once = calls.counted(lambda: decider.filter(many[0], NODES, 0.0))
    found, others = calls.counted(ask_about_all)  # each call sorts the members
    assert not any(found)
    assert others < len(many) * once / 3


def test_a_pod_refused_without_a_search_is_requeued_when_there_may_be_room():
    known, decider = cluster(2)
    first, second = ask("first"), ask("second")
    see(known, first, second, running("old", "n1", gang="other", size=1))
    assert not decider.filter(first, NODES, 0.0).fitting
    decider.freed(0.0)
    known.see_pod("team/old", None)  # no request since
    assert not decider.filter(second, NODES, 0.0).fitting, "no new search so soon"
    woken = decider.freed(gang_state.PAUSE_SECONDS * 2)
    assert second in woken
    assert decider.filter(second, NODES, gang_state.PAUSE_SECONDS * 2).fitting
