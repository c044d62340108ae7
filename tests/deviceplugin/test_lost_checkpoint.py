"""After kubelet has lost its checkpoint, running shares continue and none is granted twice."""

import json

import grant_room
import pytest
from fake_kubelet import VCORE, StartError, container, pod

from pyvgpu.deviceplugin.kubelet import checkpoint_file


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1)) as made:
        yield made


def whole(kubelet):
    """Return the current file, which kubelet takes for damaged but the agent could read."""
    document = json.loads((kubelet.folder / checkpoint_file.FILE).read_bytes())
    return json.dumps({**document, "Checksum": 1}).encode()


LOSSES = {
    "gone": lambda kubelet: None,
    "empty": lambda kubelet: b"",
    "cut": lambda kubelet: whole(kubelet)[:100],
    "wrong checksum": whole,
}


def lose(kubelet, how="gone"):
    """Restart kubelet without its checkpoint; it writes a new one."""
    kubelet.stop()
    kubelet.lose_checkpoint(LOSSES[how](kubelet))
    kubelet.start()
    kubelet.until_offered()


def share(room, name, *asked):
    """Start a pod of one container; return it and its grant."""
    one = room.kubelet.admit(pod(name, container("a", *asked)))
    return one, room.start(one, "a")


def collect(room):
    for _ in range(2):
        room.grant_manager.collect()


@pytest.mark.parametrize("how", LOSSES)
def test_running_share_survives_the_loss(room, how):
    kubelet = room.kubelet
    _, grant = share(room, "p", 60, 4)
    kubelet.change_list = lambda listed: []  # until it has reached the API server
    lose(kubelet, how)
    collect(room)
    kubelet.change_list = lambda listed: listed
    collect(room)
    assert room.folders.made == {grant.id: grant}
    assert not room.folders.revoked
    assert not room.checkpoint.grants[grant.id].over


def test_agent_restart_after_the_loss_keeps_running_shares(kubelet, tmp_path):
    has = grant_room.devices(1)
    with grant_room.running(kubelet, tmp_path, has) as room:
        _, grant = share(room, "p", 60, 4)
    lose_alone(kubelet)
    with grant_room.running(kubelet, tmp_path, has) as room:
        collect(room)
        assert room.folders.made == {grant.id: grant}
        assert not room.folders.revoked


def lose_alone(kubelet):
    """Restart kubelet without its checkpoint while no agent runs."""
    kubelet.stop()
    kubelet.lose_checkpoint()
    kubelet.start()


def test_new_pod_with_reassigned_ids_waits(room):
    kubelet = room.kubelet
    old, grant = share(room, "p", 60, 4)
    lose(kubelet)
    collect(room)
    new = kubelet.admit(pod("q", container("a", 60, 4)))
    assert kubelet.ids(new, "a", VCORE) & grant.vcore_ids  # too few others are free
    with pytest.raises(StartError, match="needs 60 vcore, has 40 free .default/p 60 vcore 1GiB"):
        room.start(new, "a")
    collect(room)
    assert room.folders.made == {grant.id: grant}
    assert not room.folders.revoked
    kubelet.remove(old)
    collect(room)
    assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"
    assert set(room.folders.made) == {left.id for left in room.checkpoint.grants.values()}


@pytest.mark.parametrize(("count", "vcore"), [(1, 40), (2, 60)])
def test_new_pod_with_reassigned_ids_runs_if_there_is_room(kubelet, tmp_path, count, vcore):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(count)) as room:
        old, first = share(room, "p", 60, 4)
        lose(kubelet)
        kubelet.insists[VCORE] = frozenset(sorted(first.vcore_ids)[:vcore])
        new = kubelet.admit(pod("q", container("a", vcore, 4)))
        second = room.start(new, "a")
        assert grant_room.text(second) == f"{vcore} 4 GPU-{count - 1}"
        assert room.start(new, "a") == second  # again
        assert set(room.folders.made) == {first.id, second.id}
        assert room.folders.times[first.id] == 1
        kubelet.remove(old)
        collect(room)
        assert set(room.folders.made) == {second.id}


def test_new_pods_get_free_ids_first(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as room:
        _, grant = share(room, "p", 60, 4)
        lose(kubelet)
        for name, vcore in (("q", 100), ("r", 40)):
            new = kubelet.admit(pod(name, container("a", vcore, 4)))
            assert not kubelet.ids(new, "a", VCORE) & grant.vcore_ids
            room.start(new, "a")
        assert grant.id in room.folders.made


def test_container_not_running_at_the_loss_gets_a_new_grant(room):
    kubelet = room.kubelet
    old = kubelet.admit(pod("p", container("a", 30, 2), container("b", 60, 4)))
    first = {name: room.start(old, name) for name in "ab"}
    lose(kubelet)
    kubelet.allocate_again(old, "b")
    again = room.start(old, "b")
    assert grant_room.text(again) == "60 4 GPU-0"
    collect(room)
    assert room.folders.made == {first["a"].id: first["a"], again.id: again}


def test_deleted_pod_ends_after_the_loss(room):
    old, _ = share(room, "p", 60, 4)
    lose(room.kubelet)
    collect(room)
    room.kubelet.remove(old)
    collect(room)
    assert not room.folders.made
    assert not room.checkpoint.grants


def test_successor_of_the_same_name_ends_the_grant(room):
    """For a force-deleted pod of a StatefulSet: only one of two pods still exists."""
    kubelet = room.kubelet
    old, _ = share(room, "web-0", 60, 4)
    lose(kubelet)
    kubelet.remove(old)
    new, grant = share(room, "web-0", 60, 4)
    assert new.uid != old.uid
    assert set(room.folders.made) == {grant.id}


def test_kubelet_with_its_checkpoint_reuses_ids(room):
    kubelet = room.kubelet
    old, before = share(room, "p", 100, 16)
    kubelet.stop()
    kubelet.start()
    kubelet.until_offered()
    collect(room)
    kubelet.remove(old)
    new = kubelet.admit(pod("q", container("a", 100, 16)))  # with no poll in between
    assert before.id not in room.folders.made
    assert grant_room.text(room.start(new, "a")) == "100 16 GPU-0"
