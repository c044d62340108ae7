"""Why a pod waits, and what would make it fit."""

import json

import pytest
import schedulerpods as pods
from allocator_nodes import device, pcie

from pyvgpu.controller.scheduler import cache, extender, pod_request, victims, wait_reasons


def ask(name="one", vcore=50, size=8, **more):
    return pod_request.read(pods.pod(name, pods.container(vcore=vcore, size=size), **more))


def running(name, number, vcore=60, size=8, node="n0"):
    thing = pods.pod(name, pods.container(vcore=vcore, size=size))
    return pod_request.read(
        pods.bind(thing, node, {"main": (pods.share(number, vcore, size),)}), (pods.KEY,)
    )


def cluster(*those, nodes=None):
    known = cache.Cache()
    for name, published in (nodes or {"n0": pods.published()}).items():
        known.see_node(name, published)
    for pod in those:
        known.see_pod(pod.key, pod)
    return known


USED = (running("a", 0, 60), running("b", 1, 90), running("c", 1, 5))


def test_the_nearest_device_and_what_would_make_it_fit():
    known = cluster(
        *USED, nodes={"n0": pods.published(), "n1": None, "n2": pods.published(size=4)}
    )
    found = wait_reasons.find(known, ask(), ["n0", "n1", "n2"])
    assert found.text() == (
        "team/one asks for 50 vcore and 8GiB\n"
        "  no device for 50 vcore and 8GiB: 1 node: not enough left on each device; "
        "1 node: no devices published (is its agent running?); "
        "1 node: no device that is large enough\n"
        "  nearest: n0 gpu0 needs 50 vcore, has 40 free (team/a 60 vcore 8GiB); "
        "it would fit if team/a ended, or if it asked for 40 vcore and 8GiB"
    )


@pytest.mark.parametrize(
    ("those", "pod", "near"),
    [
        pytest.param(
            (running("a", 0, 10, 70), running("b", 1, 10, 60)),
            ask(size=30),
            "n0 gpu1 needs 30GiB, has 20GiB free (team/b 10 vcore 60GiB); "
            "it would fit if team/a ended, or if it asked for 50 vcore and 20GiB",
            id="memory",
        ),
        pytest.param(
            (running("a", 0, 10), running("b", 1, 60)),
            ask(vcore=100, size=None),
            "n0 gpu0 is requested as a whole, but is shared: team/a 10 vcore 8GiB; "
            "it would fit if team/a ended",
            id="a whole device",
        ),
        pytest.param(
            (running("a", 0, 10),),
            ask(vcore=200, size=None),
            "n0 has room for a part of it; it would fit if team/a ended",
            id="several devices",
        ),
        pytest.param(
            tuple(running(f"p{at}", at % 2, 25, 4) for at in range(8)),
            ask(vcore=99),
            "n0 gpu0 needs 99 vcore, has 0 free (team/p0 25 vcore 4GiB, team/p2 25 vcore 4GiB, "
            "team/p4 25 vcore 4GiB, team/p6 25 vcore 4GiB)",
            id="no remedy worth naming",
        ),
    ],
)
def test_the_nearest_device(those, pod, near):
    assert str(wait_reasons.find(cluster(*those), pod).near) == near


def test_the_suggested_request_fits():
    known = cluster(*USED)
    found = wait_reasons.find(known, ask())
    assert found.near.remedies[-1] == "it asked for 40 vcore and 8GiB"
    assert wait_reasons.find(known, ask("two", 40, 8)).fitting == ("n0",)


def test_every_device_has_a_row():
    nodes = {"n0": pods.published(), "n1": pods.published(devices=(device(0, cordoned=True),))}
    found = wait_reasons.find(
        cluster(*USED, nodes=nodes), ask(), ["n1", "n0", "n9"], every_device=True
    )
    assert wait_reasons.table(found.rows()).splitlines() == [
        "NODE  DEVICE  CONTAINER  WHY NOT",
        "n0    gpu0    main       needs 50 vcore, has 40 free (team/a 60 vcore 8GiB)",
        "n0    gpu1    main       needs 50 vcore, has 5 free (team/b 90 vcore 8GiB, "
        "team/c 5 vcore 8GiB)",
        "n1    gpu0    main       is cordoned",
    ]
    document = json.loads(json.dumps(found.document()))
    assert document["asks"] == "50 vcore and 8GiB"
    assert [node["name"] for node in document["nodes"]] == ["n0", "n1", "n9"]
    assert document["nodes"][1]["devices"] == [
        {
            "device": "gpu0",
            "uuid": device(0).uuid,
            "container": "main",
            "why": "is cordoned",
        }
    ]
    assert document["nearest"]["node"] == "n0"


def test_an_invalid_annotation_is_shown():
    known = cache.Cache()
    known.see_node("n0", None, "pyvgpu.io/node-devices: is damaged: ValueError('x')")
    (row,) = wait_reasons.find(known, ask(), every_device=True).rows()
    assert row == (
        "n0",
        "",
        "",
        "published devices that cannot be parsed: pyvgpu.io/node-devices: is damaged: "
        "ValueError('x')",
    )


def test_a_pod_that_fits_has_no_nearest_device():
    found = wait_reasons.find(cluster(), ask(), ["n0"])
    assert found.text().endswith("1 node would fit, such as n0")
    assert found.near is None


def test_the_reserved_node_is_shown():
    known = cluster()
    made = extender.Decider(known)
    pod = ask()
    known.see_pod(pod.key, pod)
    made.filter(pod, ["n0"], 0)
    assert "reserved for it: n0" in made.explain("team/one").text()
    assert made.explain("team/none") is None


@pytest.mark.parametrize(
    ("those", "near"),
    [
        pytest.param((running("a", 0),), "n0 gpu0 needs 50 vcore, has 40 free", id="one device"),
        pytest.param(
            (running("a", 0), running("b", 1, 70)),
            "n0 gpu0 needs 50 vcore, has 40 free",
            id="one of two",
        ),
    ],
)
def test_its_own_claim_is_no_reason_for_waiting(those, near):
    known = cluster(*those, nodes={"n0": pods.published(len(those))})
    made = extender.Decider(known)
    pod = ask(priority=1)
    known.see_pod(pod.key, pod)
    would = "it would fit if team/a ended, or if it asked for 40 vcore and 8GiB"
    said = f"{near} (team/a 60 vcore 8GiB); {would}"
    assert str(made.explain("team/one").near) == said
    assert made.preempt(pod, ["n0"], victims.NO_BUDGETS, 0) is not None
    assert made.explain("team/one").kept == "n0"
    assert str(made.explain("team/one").near) == said
    known.see_pod("team/a", None)
    assert made.explain("team/one").fitting == ("n0",)


def test_an_invalid_request_is_explained():
    found = wait_reasons.find(cluster(), ask(vcore=150))
    assert found.text().startswith("team/one: container main: vcore 150: above 100")
    assert found.event() == found.trouble


def test_containers_are_named_as_in_the_pod():
    thing = pods.pod("x", pods.container("first", 70), pods.container("second", 200, None))
    found = wait_reasons.find(
        cluster(nodes={"n0": pods.published(1)}), pod_request.read(thing), every_device=True
    )
    assert found.asked == "first: 70 vcore and 8GiB, second: 200 vcore"
    assert found.rows()[0] == ("n0", "", "second", "second asks for 2 devices, only 1 fits")


def test_a_share_of_several_devices_is_named_as_such():
    pod = ask(vcore=100, size=8, notes={"pyvgpu.io/device-count": "2"})
    assert wait_reasons.find(cluster(), pod).asked == "100 vcore and 8GiB on 2 devices"


def test_an_event_is_truncated_to_its_limit():
    known = cache.Cache()
    for number in range(60):
        known.see_node(f"n{number}", pods.published(devices=pcie(2)))
        for at in range(40):
            pod = running(f"{'long-name-' * 20}{number}-{at}", at % 2, 4, 1, f"n{number}")
            known.see_pod(pod.key, pod)
    found = wait_reasons.find(known, ask(vcore=60)).event()
    assert len(found.encode()) == wait_reasons.MOST_EVENT_BYTES
    assert found.startswith("no device for 60 vcore and 8GiB: 60 nodes: not enough left")
    assert found.endswith("...")


def test_without_known_nodes_it_says_so():
    assert wait_reasons.find(cache.Cache(), ask()).event().endswith("no node is known")
