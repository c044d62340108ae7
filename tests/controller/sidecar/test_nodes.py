"""Node facts that decisions use."""

import dataclasses
import datetime

import pod_objects as make
import pytest

from pyvgpu.controller.sidecar import controller_settings, nodes

NOW = datetime.datetime.fromisoformat(make.AT)
CHOSEN = controller_settings.SidecarSettings()


def node(labels=None, taints=(), images=(), version="v1.36.3"):
    return {
        "metadata": {"name": "node-1", "labels": labels or {}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"nodeInfo": {"kubeletVersion": version}, "images": [{"names": list(images)}]},
    }


def lease(age, image=None):
    renewed = NOW - datetime.timedelta(seconds=age)
    annotations = {nodes.FAST_EXIT_ANNOTATION: image} if image else {}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"renewTime": renewed.isoformat(timespec="microseconds")},
    }


@pytest.mark.parametrize(
    ("labels", "taints", "virtual"),
    [
        ({}, [], False),
        ({"type": "virtual-kubelet"}, [], True),
        ({"type": "gpu"}, [], False),
        ({}, ["virtual-kubelet.io/provider"], True),
        ({}, ["node.kubernetes.io/not-ready"], False),
        ({"eks.amazonaws.com/compute-type": "fargate"}, [], True),
    ],
)
def test_virtual(labels, taints, virtual):
    read = nodes.read(node(labels, taints), lease(0), NOW, CHOSEN)
    assert (read.virtual, read.live) == (virtual, not virtual)


@pytest.mark.parametrize(
    ("renewed", "live"), [(None, False), (0, True), (180, True), (181, False)]
)
def test_a_node_part_is_live_while_it_renews_its_lease(renewed, live):
    held = None if renewed is None else lease(renewed)
    assert nodes.read(node(), held, NOW, CHOSEN).live is live


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_node_with_a_wrong_clock_is_live_while_renewals_are_seen(hours):
    held = lease(hours * 3600)
    assert not nodes.read(node(), held, NOW, CHOSEN).live
    assert nodes.read(node(), held, NOW, CHOSEN, 180.0).live
    assert not nodes.read(node(), held, NOW, CHOSEN, 180.1).live


def test_a_leases_age_counts_from_the_last_renewal_seen():
    beats = nodes.Beats()
    beats.observe("a", "10:00", 1.0)
    assert beats.age("a", 5.0) is None  # it may be old
    beats.observe("a", "10:10", 11.0)
    beats.observe("a", "10:10", 20.0)  # another change, or a list
    assert beats.age("a", 21.0) == 10.0
    beats.observe("a", None, 22.0)
    assert beats.age("a", 23.0) is None


def test_a_lease_that_was_never_renewed_is_not_live():
    assert not nodes.read(node(), {"spec": {}}, NOW, CHOSEN).live


def test_fast_exit_image_is_known_from_the_node_or_the_lease():
    wanted = CHOSEN.fast_exit.image
    assert nodes.read(node(images=[wanted]), None, NOW, CHOSEN).has_fast_exit
    assert nodes.read(node(), lease(0, wanted), NOW, CHOSEN).has_fast_exit
    assert not nodes.read(node(images=["other"]), lease(0, "other"), NOW, CHOSEN).has_fast_exit


@pytest.mark.parametrize(("renewed", "has"), [(3600, True), (86_400, True), (86_401, False)])
def test_a_report_of_the_fast_exit_image_expires(renewed, has):
    held = lease(renewed, CHOSEN.fast_exit.image)
    assert nodes.read(node(), held, NOW, CHOSEN).has_fast_exit is has


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ('{"a:1": true, "b:1": false}', {"a:1": True, "b:1": False, "c:1": True}),
        ('{"c:1": false}', {"c:1": False}),  # the runtime's answer overrides the node's status
        ("[]", {"c:1": True}),
        ("{", {"c:1": True}),
        ('{"a:1": "yes"}', {"c:1": True}),
    ],
)
def test_images_come_from_the_nodes_status_and_the_node_parts_report(said, known):
    held = lease(0, "")
    held["metadata"]["annotations"][nodes.IMAGES_ANNOTATION] = said
    assert nodes.read(node(images=["c:1"]), held, NOW, CHOSEN).images == known


def test_a_dead_node_parts_report_is_ignored():
    held = lease(10_000, "")
    held["metadata"]["annotations"][nodes.IMAGES_ANNOTATION] = '{"a:1": true}'
    assert nodes.read(node(), held, NOW, CHOSEN).images == {}


@pytest.mark.parametrize(
    ("versions", "oldest"),
    [
        (["v1.36.3", "v1.28.0"], (1, 28)),
        (["v1.36.3", "unknown"], None),
        ([], None),
    ],
)
def test_oldest_kubelet(versions, oldest):
    found = [nodes.read(node(version=version), None, NOW, CHOSEN) for version in versions]
    virtual = nodes.read(node({"type": "virtual-kubelet"}, version="x"), None, NOW, CHOSEN)
    assert nodes.oldest([*found, virtual]) == oldest


def test_a_deleted_node_has_no_capabilities():
    known = nodes.read(node(), None, NOW, CHOSEN)
    assert nodes.absent("node-1") == dataclasses.replace(known, kubelet=None)


@pytest.mark.parametrize(
    ("text", "release"),
    [("v1.36.3", (1, 36)), ("v1.29.0+k3s1", (1, 29)), ("1.20", (1, 20)), ("", None), ("x", None)],
)
def test_release(text, release):
    assert nodes.read_release(text) == release


@pytest.mark.parametrize("renewed", ["9999-12-31T23:59:59Z", "10000-01-01T00:59:59.000000Z"])
def test_a_lease_renewed_at_an_impossible_time_is_not_live(renewed):
    held = {"metadata": {}, "spec": {"renewTime": renewed}}
    assert not nodes.read(node(), held, NOW, CHOSEN).live
