"""Pods of other systems' groups, which kube-scheduler binds all or none."""

import pytest
import schedulerpods as pods
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.controller.scheduler import cache, extender, group_state, other_groups, pod_request

NODES = ["n0"]
EXPECTS = cache.Cache().settings.expect_seconds


def cluster(devices=2):
    known = cache.Cache()
    known.see_node("n0", pods.published(devices))
    return known, extender.Decider(known)


def pod(known, name, group="", vcore=100):
    spec = {"schedulingGroup": {"podGroupName": group}} if group else {}
    thing = pods.pod(name, pods.container(vcore=vcore, size=0), **spec)
    made = pod_request.read(thing)
    known.see_pod(made.key, made)
    return made


def tries(made, members, now):
    """Filter the members of a group; return which fit, as in a cycle of kube-scheduler."""
    return [bool(made.filter(one, NODES, now).fitting) for one in members]


@pytest.mark.parametrize(
    ("metadata", "spec", "group"),
    [
        ({}, {}, ""),
        ({}, {"schedulingGroup": {"podGroupName": "train"}}, "n/train"),
        ({}, {"workloadRef": {"name": "train", "podGroup": "workers"}}, "n/train"),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "train"}}, {}, "n/train"),
        ({"annotations": {"scheduling.k8s.io/group-name": "train"}}, {}, "n/train"),
        ({"labels": {"kueue.x-k8s.io/pod-group-name": "train"}}, {}, ""),
    ],
)
def test_name_of_the_group(metadata, spec, group):
    thing = {"metadata": {"namespace": "n", **metadata}, "spec": spec}
    assert other_groups.name_of(thing) == group


def test_group_that_did_not_fit_gives_way_to_a_pod_that_waits():
    known, made = cluster()
    members = [pod(known, f"red-{n}", "red") for n in range(3)]
    single = pod(known, "single")
    assert tries(made, members, 0) == [True, True, False]
    assert not made.filter(single, NODES, 0.1).fitting
    # The reservations end, and all are tried again, the group first.
    assert single in made.freed(EXPECTS)
    assert tries(made, members, EXPECTS) == [False, False, False]
    assert made.filter(single, NODES, EXPECTS).fitting == ["n0"]


def test_group_tried_again_and_again_reserves_no_longer():
    known, made = cluster()
    members = [pod(known, f"red-{n}", "red") for n in range(3)]
    single = pod(known, "single")
    for now in range(int(EXPECTS)):
        tries(made, members, now)
        assert not made.filter(single, NODES, now).fitting
    made.freed(EXPECTS)
    assert tries(made, members, EXPECTS) == [False, False, False]
    assert made.filter(single, NODES, EXPECTS).fitting == ["n0"]


def test_group_gives_way_to_none_that_does_not_fit_or_is_gone():
    known, made = cluster()
    members = [pod(known, f"red-{n}", "red") for n in range(3)]
    large, single = pod(known, "large", vcore=300), pod(known, "single")
    tries(made, members, 0)
    assert not made.filter(large, NODES, 0).fitting
    assert not made.filter(single, NODES, 0).fitting
    made.freed(EXPECTS)
    known.see_pod(single.key, None)
    assert tries(made, members, EXPECTS) == [True, True, False]


def test_group_gives_way_for_a_limited_time_and_is_requeued():
    known, made = cluster()
    members = [pod(known, f"red-{n}", "red") for n in range(2)]
    single = pod(known, "single")
    tries(made, members, 0)
    made.filter(single, NODES, 0)
    made.freed(EXPECTS)
    assert tries(made, members, EXPECTS) == [False, False]
    end = EXPECTS + other_groups.YIELD_SECONDS
    assert set(members) <= set(made.freed(end))
    assert tries(made, members, end) == [True, True]


def bind(known, made, one, now, node="n0"):
    """Return whether a pod is bound, is not, or waits (None)."""
    try:
        if made.arrive(one, node, now) is not None:
            return None
        known.reserve(one, node, now)
    except errors.UnavailableError:
        return False
    return True


def group(known, count):
    return [pod(known, f"red-{n}", "red") for n in range(count)]


def test_group_of_which_others_took_the_room_is_not_bound_in_part():
    known, made = cluster()
    members, single = group(known, 2), pod(known, "single")
    assert made.filter(members[0], NODES, 0).fitting
    late = EXPECTS + 1  # as if the first one waits in Permit
    assert made.filter(single, NODES, late).fitting
    assert bind(known, made, single, late)
    assert made.filter(members[1], NODES, late).fitting
    assert bind(known, made, members[1], late) is None
    assert bind(known, made, members[0], late) is False
    with pytest.raises(errors.UnavailableError, match="pod team/red-0 of its group has no room"):
        made.arrive(members[1], "n0", late)
    assert all(known.find(one.uid) is None for one in members)


def test_devices_stay_reserved_while_a_group_is_filtered_slowly():
    known, made = cluster(3)
    members, single = group(known, 3), pod(known, "single")
    step = EXPECTS * 0.8
    for at, one in enumerate(members):
        assert made.filter(one, NODES, at * step).fitting
    assert not made.filter(single, NODES, 2 * step).fitting
    assert [bind(known, made, one, 2 * step) for one in members] == [None, None, True]
    assert [bind(known, made, one, 2 * step) for one in members[:2]] == [True, True]


def test_group_that_was_refused_is_bound_when_there_is_room():
    known, made = cluster()
    members, single = group(known, 2), pod(known, "single")
    made.filter(members[0], NODES, 0)
    known.expire(EXPECTS)
    known.reserve(single, "n0", EXPECTS)
    made.filter(members[1], NODES, EXPECTS)
    assert [bind(known, made, one, EXPECTS) for one in reversed(members)] == [None, False]
    known.see_pod(single.key, None)
    now = EXPECTS + 1
    assert tries(made, members, now) == [True, True]
    assert [bind(known, made, one, now) for one in members] == [None, True]
    assert bind(known, made, members[0], now)


def test_pod_that_is_not_sent_is_awaited_for_a_limited_time():
    known, made = cluster(3)
    members = group(known, 3)
    tries(made, members, 0)
    assert [bind(known, made, one, 0) for one in members[:2]] == [None, None]
    end = group_state.AWAIT_SECONDS
    assert [bind(known, made, one, end) for one in members[:2]] == [True, True]
    assert bind(known, made, members[2], end)


def test_pod_that_is_gone_is_not_awaited():
    known, made = cluster()
    members = group(known, 2)
    tries(made, members, 0)
    known.see_pod(members[1].key, None)
    made.freed(0)
    assert bind(known, made, members[0], 0)


def test_pod_of_a_group_is_bound_after_a_restart():
    known, made = cluster()
    members = group(known, 2)
    tries(made, members, 0)
    made = extender.Decider(known)
    assert all(bind(known, made, one, 0) for one in members)


@given(
    count=st.integers(2, 4),
    events=st.lists(
        st.tuples(st.sampled_from(["filter", "other", "wait", "end"]), st.integers(0, 3)),
        max_size=12,
    ),
    order=st.permutations(range(4)),
)
@settings(max_examples=300, deadline=None)
def test_all_or_none_in_any_order_of_filter_bind_and_expiry(count, events, order):
    known, made = cluster(count)
    members = group(known, count)
    now, others, accepted = 0.0, 0, set()
    for kind, number in [*events, *(("filter", n) for n in range(count))]:
        if kind == "filter":
            if made.filter(members[number % count], NODES, now).fitting:
                accepted.add(number % count)
        elif kind == "other":
            others += 1
            single = pod(known, f"other-{others}")
            if made.filter(single, NODES, now).fitting:
                assert bind(known, made, single, now)
        elif kind == "wait":
            now += 2.0 * number
        elif others and known.pods.get(f"team/other-{others}"):
            known.see_pod(f"team/other-{others}", None)
    if len(accepted) < count:  # kube-scheduler binds none
        return
    waiting = [n for n in order if n < count]
    results = {n: bind(known, made, members[n], now) for n in waiting}
    results |= {n: bind(known, made, members[n], now) for n in waiting if results[n] is None}
    assert set(results.values()) in ({True}, {False})
    # Nothing is refused for ever.
    for key in [key for key in known.pods if "other" in key]:
        known.see_pod(key, None)
    now += other_groups.YIELD_SECONDS + group_state.BIND_SECONDS
    made.freed(now)
    if results[0] is False:
        assert tries(made, members, now) == [True] * count
        for one in members:
            bind(known, made, one, now)
        assert all(bind(known, made, one, now) for one in members)
