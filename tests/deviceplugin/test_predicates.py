"""gpu-admission's pod annotations are followed, and granted devices are annotated for it."""

import time

import grant_room
import pytest
from cluster_of_one import NODE
from fake_kubelet import StartError, container, pod

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.gpu_manager import predicate_annotations
from pyvgpu.deviceplugin.grants import interfaces, placement, pod_identity

MINORS = {"GPU-0": 4, "GPU-1": 2, "GPU-2": 10}
FIRST, SECOND = (f"tencent.com/predicate-gpu-idx-{index}" for index in (0, 1))
HERE = {"tencent.com/predicate-node": NODE}


def of(notes, *containers):
    return {
        "metadata": {"annotations": notes},
        "spec": {"containers": [{"name": name} for name in containers or ("a", "b")]},
    }


@pytest.mark.parametrize(
    ("notes", "devices"),
    [
        pytest.param(None, {}, id="none"),
        pytest.param({}, {}, id="no notes"),
        pytest.param({FIRST: "2"}, {"a": ("GPU-1",)}, id="by minor"),
        pytest.param({SECOND: "10,4"}, {"b": ("GPU-2", "GPU-0")}, id="several"),
        pytest.param({**HERE, FIRST: "4"}, {"a": ("GPU-0",)}, id="of this node"),
        pytest.param(
            {FIRST: "4", "tencent.com/predicate-node": "node-2"}, {}, id="of another node"
        ),
        pytest.param({FIRST: ""}, {}, id="empty"),
        pytest.param({"tencent.com/gpu-assigned": "false"}, {}, id="not chosen yet"),
    ],
)
def test_annotated_minors_are_parsed(notes, devices):
    assert predicate_annotations.read(of(notes), NODE, MINORS) == devices


@pytest.mark.parametrize("text", ["7", "4,7", "GPU-0", "4;2", "-1", " 4", "٤"])
def test_unknown_minor_is_refused_for_good(text):
    with pytest.raises(placement.RefusedError, match="must be minor numbers of this") as caught:
        predicate_annotations.read(of({FIRST: text}), NODE, MINORS)
    assert caught.value.final


def test_no_final_refusal_before_the_devices_are_known():
    with pytest.raises(placement.RefusedError) as caught:
        predicate_annotations.read(of({FIRST: "4"}), NODE, {})
    assert not caught.value.final


def test_granted_devices_are_annotated_once():
    shares = {
        "b": (datatypes.NodeShare("GPU-2", 30, 1), datatypes.NodeShare("GPU-0", 30, 1)),
        "init": (),
    }
    given = predicate_annotations.GrantedPod(pod_identity.KnownPod("u", "team", "p", ()), shares)
    wanted = predicate_annotations.notes(of({}), given, NODE, MINORS, 12.5)
    assert wanted == {
        SECOND: "10,4",
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-time": "12500000000",
        **HERE,
    }
    assert predicate_annotations.notes(of(wanted), given, NODE, MINORS, 99.0) == {}
    wrong = {**wanted, SECOND: "4", "tencent.com/gpu-assigned": "false"}
    assert set(predicate_annotations.notes(of(wrong), given, NODE, MINORS, 99.0)) == {
        SECOND,
        "tencent.com/gpu-assigned",
    }


@pytest.fixture
def room(kubelet, tmp_path, cluster):
    noting = predicate_annotations.Predicates(cluster.pods, NODE, lambda: MINORS)
    policy = interfaces.StartPolicy(choose=noting.choose)
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2), policy=policy) as made:
        made.grant_manager.observers.bound.add(noting.note)
        made.posted = []
        made.grant_manager.observers.reported.add(made.posted.append)
        made.noting = noting
        yield made


def written(room):
    """Write all queued annotations."""
    room.noting.stop()
    room.noting.run()


def test_pod_gets_the_devices_chosen_by_gpu_admission(room, cluster):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, {FIRST: "2", "tencent.com/predicate-time": "7", **HERE})
    assert grant_room.text(room.start(one, "a")) == "30 2 GPU-1"
    whole = room.kubelet.admit(pod("q", container("a", 100, 0)))
    cluster.add(whole, {FIRST: "2"})
    with pytest.raises(
        StartError, match="the devices chosen for it cannot be given for now: gpu1 has 70"
    ):
        room.start(whole, "a")
    written(room)
    noted = cluster.notes(one)
    assert noted["tencent.com/gpu-assigned"] == "true"
    assert noted["tencent.com/predicate-time"] == "7"
    assert "tencent.com/gpu-assigned" not in cluster.notes(whole)


def test_pod_without_a_choice_is_placed_and_annotated(room, cluster):
    one = room.kubelet.admit(pod("p", container("none", 0, 0), container("a", 30, 2)))
    cluster.add(one, {})
    before = time.time_ns()
    assert grant_room.text(room.start(one, "a")) == "30 2 GPU-0"
    written(room)
    noted = cluster.notes(one)
    assert before <= int(noted.pop("tencent.com/predicate-time")) <= time.time_ns()
    assert noted == {SECOND: "4", "tencent.com/gpu-assigned": "true", **HERE}


def test_forged_choice_gives_no_more_room(room, cluster):
    one = room.kubelet.admit(pod("p", container("a", 60, 2)))
    cluster.add(one, {FIRST: "2"})
    room.start(one, "a")
    forged = room.kubelet.admit(pod("q", container("a", 60, 2)))
    cluster.add(forged, {FIRST: "2", "tencent.com/gpu-assigned": "true"})
    with pytest.raises(StartError, match="gpu1 has 40 vcore and 3.5GiB free"):
        room.start(forged, "a")
    assert [event.uid for event in room.posted] == [forged.uid]


def test_later_pod_of_the_same_name_is_not_annotated(room, cluster):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, {})
    room.start(one, "a")
    cluster.add(pod("p", container("a", 30, 2)), {})
    written(room)
    assert cluster.notes(one) == {}
