"""Sharing annotations of running pods are applied, within the allowed range."""

import dataclasses
import queue

import grant_room
import pytest
import waiting
from fake_kubelet import container, pod

from pyvgpu import quota
from pyvgpu.deviceplugin.cluster import node_pods, pod_annotations

LIMIT, POLICY = "pyvgpu.io/vcore-limit", "pyvgpu.io/vcore-policy"


class Pods:
    """The last seen pods of a node."""

    def __init__(self):
        self.pods = {}

    def seen(self, uid):
        return self.pods.get(uid)


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as made:
        yield made


@pytest.fixture
def following(room):
    posted = []
    known = Pods()
    made = pod_annotations.PodAnnotations(known, room.grant_manager, posted.append)

    def poll(one, annotations):
        meta = {"uid": one.uid, "namespace": "default", "name": one.name}
        pod = {"metadata": {**meta, "annotations": annotations}}
        known.pods = dict.fromkeys(node_pods.uids_of(pod), pod)
        made.poll()
        return [refusal.text for refusal in posted]

    poll.annotations, poll.known, poll.posted = made, known, posted
    return poll


def held(room, grant):
    now = room.folders.made[grant.id]
    assert now == room.checkpoint.grants[grant.id]
    return now.policy, now.ceiling


def test_policy_of_a_running_pod_follows_its_annotations(room, following):
    one = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 50, 2)))
    grants = [room.start(one, name) for name in "ab"]
    assert following(one, None) == []
    assert [held(room, grant) for grant in grants] == [(quota.TimePolicy.HARD, None)] * 2
    assert following(one, {LIMIT: "80"}) == []
    assert [held(room, grant) for grant in grants] == [(quota.TimePolicy.ELASTIC, 80)] * 2
    assert following(one, {POLICY: "elastic"}) == []
    assert [held(room, grant) for grant in grants] == [(quota.TimePolicy.ELASTIC, None)] * 2
    assert following(one, {}) == []
    assert [held(room, grant) for grant in grants] == [(quota.TimePolicy.HARD, None)] * 2


def test_invalid_annotation_gets_an_event_and_changes_nothing(room, following):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    grant = room.start(one, "a")
    (said,) = following(one, {LIMIT: "20"})
    assert "from the container's own 30 vcore to 100" in said
    assert held(room, grant) == (quota.TimePolicy.HARD, None)
    assert following(one, {POLICY: "soft"})[1].endswith("must be hard or elastic, such as hard")
    assert not any(refusal.evict for refusal in following.posted)


def test_annotations_come_from_a_static_pods_mirror(room, following):
    one = dataclasses.replace(pod("p", container("a", 30, 2)), uid="b2f1" * 8)
    grant = room.start(room.kubelet.admit(one), "a")
    seen_by_the_server = dataclasses.replace(one, uid="its own")
    of = {"kubernetes.io/config.mirror": one.uid}
    assert following(seen_by_the_server, {**of, LIMIT: "80"}) == []
    assert held(room, grant) == (quota.TimePolicy.ELASTIC, 80)


def test_changed_pod_is_applied_at_once(room, following, monkeypatch):
    monkeypatch.setattr(pod_annotations, "POLL_SECONDS", 600.0)
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    grant = room.start(one, "a")
    meta = {"uid": one.uid, "namespace": "default", "name": one.name}
    applied = queue.SimpleQueue()
    room.grant_manager.observers.reported.add(applied.put)
    with waiting.beside(following.annotations):
        following.known.pods = {one.uid: {"metadata": {**meta, "annotations": {LIMIT: "80"}}}}
        following.annotations.changed("default/p")
        event = applied.get(timeout=waiting.PROMPT)  # once stored and written to the folder
    assert "quota is now" in event.text
    assert held(room, grant) == (quota.TimePolicy.ELASTIC, 80)


def test_annotations_do_not_affect_whole_devices(room, following):
    one = room.kubelet.admit(pod("p", container("a", 100, 0)))
    room.start(one, "a")
    assert following(one, {LIMIT: "no number"}) == []
