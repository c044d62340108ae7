"""Pods of other systems' groups, which kube-scheduler binds all or none."""

import pytest
import schedulerpods as pods

from pyvgpu.controller.scheduler import cache, extender, other_groups, pod_request

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
