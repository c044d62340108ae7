"""What a pod that runs says of idle time is followed, and no more than it may say."""

import dataclasses

import grant_room
import pytest
from fake_kubelet import container, pod

from pyvgpu import quota
from pyvgpu.deviceplugin import wishes

LIMIT, POLICY = "pyvgpu.io/vcore-limit", "pyvgpu.io/vcore-policy"


class Server:
    """An API server with the pods of one node."""

    def __init__(self):
        self.pods = []
        self.asked = []
        self.whole = []  # of each question: whether it was for all of each pod

    def call(self, method, path, query, accept=""):
        assert (method, path) == ("GET", "/api/v1/pods")
        self.asked.append(query)
        self.whole.append("PartialObjectMetadataList" not in accept)
        return {"items": self.pods}


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as made:
        yield made


@pytest.fixture
def following(room):
    told = []
    server = Server()
    made = wishes.Wishes(server, "node-1", room.granter, told.append)

    def look(one, annotations):
        meta = {"uid": one.uid, "namespace": "default", "name": one.name}
        server.pods = [{"metadata": {**meta, "annotations": annotations}}]
        made.look()
        return [refusal.text for refusal in told]

    look.server, look.told = server, told
    return look


def held(room, grant):
    now = room.folders.made[grant.id]
    assert now == room.checkpoint.grants[grant.id]
    return now.policy, now.ceiling


def test_the_policy_of_a_pod_follows_its_annotations(room, following):
    one = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 50, 2)))
    grants = [room.start(one, name) for name in "ab"]
    assert following(one, None) == []
    assert [held(room, it) for it in grants] == [(quota.Policy.HARD, None)] * 2
    assert following(one, {LIMIT: "80"}) == []
    assert [held(room, it) for it in grants] == [(quota.Policy.ELASTIC, 80)] * 2
    assert following(one, {POLICY: "elastic"}) == []
    assert [held(room, it) for it in grants] == [(quota.Policy.ELASTIC, None)] * 2
    assert following(one, {}) == []
    assert [held(room, it) for it in grants] == [(quota.Policy.HARD, None)] * 2


def test_what_a_pod_may_not_say_is_told_of_and_changes_nothing(room, following):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    grant = room.start(one, "a")
    (said,) = following(one, {LIMIT: "20"})
    assert "from the container's own 30 vcore to 100" in said
    assert held(room, grant) == (quota.Policy.HARD, None)
    assert following(one, {POLICY: "soft"})[1].endswith("must be hard or elastic, such as hard")
    assert not any(refusal.evict for refusal in following.told)


def test_a_static_pods_mirror_says_what_it_wishes(room, following):
    one = dataclasses.replace(pod("p", container("a", 30, 2)), uid="b2f1" * 8)
    grant = room.start(room.kubelet.admit(one), "a")
    seen_by_the_server = dataclasses.replace(one, uid="its own")
    of = {"kubernetes.io/config.mirror": one.uid}
    assert following(seen_by_the_server, {**of, LIMIT: "80"}) == []
    assert held(room, grant) == (quota.Policy.ELASTIC, 80)


def test_pods_are_read_whole_only_once(room, following):
    pods = [room.kubelet.admit(pod(name, container("a", 30, 2))) for name in "pq"]
    whole = following.server.whole
    room.start(pods[0], "a")
    for _ in range(3):
        assert following(pods[0], {LIMIT: "80"}) == []
    assert whole == [True, False, False]
    grant = room.start(pods[1], "a")
    following(pods[1], {})
    assert following(pods[1], {LIMIT: "90"}) == []
    assert held(room, grant) == (quota.Policy.ELASTIC, 90)


def test_nobody_is_asked_while_nothing_is_shared(room, following):
    one = room.kubelet.admit(pod("p", container("a", 100, 0)))
    room.start(one, "a")
    assert following(one, {LIMIT: "80"}) == []
    assert following.server.asked == []
