"""The node's pods come from a watch; a pod that was not seen is read from the API server."""

import queue

import pytest
import waiting
from cluster_of_one import NODE
from fake_kubelet import container, pod

from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.cluster import node_pods
from pyvgpu.kube import apiserver

ONE = pod("p", container("a", 30, 2))
PATH = f"/api/v1/namespaces/{ONE.namespace}/pods/{ONE.name}"
OWNER = grants.Owner(ONE.uid, ONE.namespace, ONE.name, "a")
STATIC = grants.Owner("b2f1" * 8, ONE.namespace, ONE.name, "a")
MIRROR = "kubernetes.io/config.mirror"


@pytest.fixture
def watched(cluster):
    made = node_pods.Pods(cluster.connection, NODE)
    made.sync()
    with waiting.beside(made):
        cluster.api.wait_for("WATCH", "/api/v1/pods")
        yield made


def test_seen_pod_is_not_read_again(watched, cluster):
    cluster.add(ONE, {"a": "b"})
    waiting.wait_until(lambda: watched.seen(ONE.uid))
    before = len(cluster.api.asked)
    assert watched.find(ONE.uid, ONE.namespace, ONE.name)["metadata"]["annotations"] == {"a": "b"}
    assert watched.name_of(ONE.uid) == (ONE.namespace, ONE.name)
    assert not watched.is_over(OWNER)
    assert len(cluster.api.asked) == before


def test_changes_and_deletions_are_reported(watched, cluster):
    keys = queue.SimpleQueue()
    watched.changed.add(keys.put)
    key = f"{ONE.namespace}/{ONE.name}"
    cluster.add(ONE, {})
    assert keys.get(timeout=waiting.PROMPT) == key
    assert watched.seen(ONE.uid)
    cluster.api.put(PATH, {**cluster.api.read(PATH), "status": {"phase": "Failed"}})
    assert keys.get(timeout=waiting.PROMPT) == key
    assert watched.is_over(OWNER)
    cluster.api.delete(PATH)
    assert keys.get(timeout=waiting.PROMPT) == key
    assert watched.seen(ONE.uid) is None
    assert watched.is_over(OWNER)
    assert keys.empty()


def test_later_pod_of_the_same_name_replaces_it(watched, cluster):
    cluster.add(ONE, {})
    waiting.wait_until(lambda: watched.seen(ONE.uid))
    other = pod("p", container("a", 30, 2))
    cluster.add(other, {})
    waiting.wait_until(lambda: watched.seen(other.uid))
    assert watched.seen(ONE.uid) is None


def test_unseen_pod_is_read_by_name_or_from_the_list(cluster):
    assert cluster.pods.find(ONE.uid, ONE.namespace, ONE.name) is None
    cluster.add(ONE, {})
    assert cluster.pods.find(ONE.uid, ONE.namespace, ONE.name)["metadata"]["uid"] == ONE.uid
    assert cluster.pods.name_of(ONE.uid) == (ONE.namespace, ONE.name)
    assert cluster.pods.name_of("another") == ("", "")
    cluster.api.go_down()
    assert cluster.pods.name_of(ONE.uid) == ("", "")
    with pytest.raises(apiserver.ServerError):
        cluster.pods.find(ONE.uid, ONE.namespace, ONE.name)


def put(cluster, uid, phase, annotations=None):
    meta = {"uid": uid, "name": ONE.name, "namespace": ONE.namespace}
    cluster.api.put(
        PATH, {"metadata": {**meta, "annotations": annotations}, "status": {"phase": phase}}
    )


@pytest.mark.parametrize(
    ("uid", "phase", "over"),
    [
        pytest.param(ONE.uid, "Running", False, id="runs"),
        pytest.param(ONE.uid, "Pending", False, id="waits"),
        pytest.param(ONE.uid, "Succeeded", True, id="ended"),
        pytest.param("another", "Running", True, id="another of its name"),
    ],
)
def test_pod_is_over_by_its_phase_and_uid(cluster, uid, phase, over):
    put(cluster, uid, phase)
    assert cluster.pods.is_over(OWNER) is over


@pytest.mark.parametrize(
    ("codes", "over"), [([404], True), ([403], False), ([0], False)], ids=["gone", "no", "away"]
)
def test_only_a_404_means_that_a_pod_is_over(cluster, codes, over):
    put(cluster, ONE.uid, "Running")
    cluster.api.failing = codes
    assert cluster.pods.is_over(OWNER) is over


@pytest.mark.parametrize(
    ("uid", "phase", "over"),
    [
        pytest.param(STATIC.uid, "Running", False, id="runs"),
        pytest.param(STATIC.uid, "Failed", True, id="ended"),
        pytest.param("0" * 32, "Running", False, id="the mirror of its next file"),
    ],
)
def test_static_pod_is_found_by_its_mirror(cluster, uid, phase, over):
    """The mirror has its own uid, and is created after kubelet has started the pod."""
    put(cluster, "its own", phase, {MIRROR: uid})
    assert cluster.pods.is_over(STATIC) is over


def test_static_pod_without_a_mirror_is_not_over(cluster):
    assert not cluster.pods.is_over(STATIC)
