"""Pods that are hard to place do not delay other requests for long."""

import dataclasses

import calls
import pytest
import schedulerpods as pods

from pyvgpu.controller.scheduler import cache, extender, pod_request, victims

NODES = [f"n{number}" for number in range(40)]
MOST_CALLS = 3_000_000  # about a second

# Fits eight devices in total only, in no partition: vcore and GiB.
PARTS = [
    (38, 10),
    (37, 10),
    (38, 26),
    (43, 23),
    (25, 27),
    (40, 17),
    (44, 18),
    (48, 17),
    (30, 17),
    (46, 21),
    (32, 20),
    (46, 19),
    (47, 14),
    (47, 10),
    (37, 24),
    (44, 7),
    (44, 16),
    (37, 17),
    (44, 12),
]
TIGHT = [pods.container(f"c{at}", *part) for at, part in enumerate(PARTS)]
# No node has four linked devices, which the search finds out last.
APART = [pods.container(f"a{at}", 1 + at, 1) for at in range(6)]
APART_LAST = pods.container("last", 4, 4)
FOUR_LINKED = {"pyvgpu.io/device-count": "last=4", "pyvgpu.io/topology-policy": "nvlink"}
RIDDLES = {
    "tight": pods.pod("x", *TIGHT, priority=100),
    "apart": pods.pod("x", *APART, init=[APART_LAST], notes=FOUR_LINKED, priority=100),
}


@pytest.fixture(params=sorted(RIDDLES))
def riddle(request):
    return pod_request.read(RIDDLES[request.param])


@pytest.fixture
def known():
    found = cache.Cache()
    for name in NODES:
        found.see_node(name, pods.published(8))
    return found


def fill(known, node):
    """Fill most of a node with pods of four priorities."""
    for number in range(64):
        thing = pods.pod(f"v{number}", pods.container(vcore=12, size=5), priority=number % 4)
        shares = known.reserve(pod_request.read(thing), node, 0.0)
        bound = pod_request.read(pods.bind(thing, node, shares), (pods.KEY,))
        known.see_pod(bound.key, bound)


def test_a_request_about_many_nodes_is_answered_soon(known, riddle):
    decider = extender.Decider(known)
    _, count = calls.counted(lambda: decider.filter(riddle, NODES, 0.0))
    assert count < MOST_CALLS


@pytest.mark.slow
def test_victims_are_found_soon(known, riddle):
    fill(known, NODES[0])
    decider = extender.Decider(known)
    asked = [NODES[0]]
    _, count = calls.counted(lambda: decider.preempt(riddle, asked, victims.NO_BUDGETS, 0.0))
    assert count < MOST_CALLS


@pytest.mark.slow
def test_an_explanation_is_found_soon(known, riddle):
    known.see_pod(riddle.key, riddle)
    decider = extender.Decider(known)
    _, count = calls.counted(lambda: decider.explain(riddle.key, NODES))
    assert count < MOST_CALLS


def test_beside_hard_pods_on_unknown_devices_others_are_placed_soon(known, riddle):
    for number in range(4):
        lost = dataclasses.replace(riddle, key=f"team/r{number}", uid=f"r{number}", node=NODES[0])
        known.see_pod(lost.key, lost)
    decider = extender.Decider(known)
    one = pod_request.read(pods.pod("one"))
    answer, count = calls.counted(lambda: decider.filter(one, NODES[:2], 0.0))
    assert NODES[1] in answer.fitting
    assert count < MOST_CALLS
