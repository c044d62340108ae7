"""A container's start is bound only if kubelet's state has not changed meanwhile."""

import concurrent.futures
import queue
import threading

import grant_room
import pytest
import waiting
from fake_kubelet import VCORE, StartError, container, pod

from pyvgpu.deviceplugin.grants import interfaces, placement
from pyvgpu.deviceplugin.kubelet import device_ids


@pytest.fixture
def choosers():
    """The last of these functions says which devices are chosen for a starting pod."""
    return [lambda _: placement.NOTHING]


@pytest.fixture
def room(kubelet, tmp_path, choosers):
    policy = interfaces.StartPolicy(choose=lambda one: choosers[-1](one))
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1), policy=policy) as made:
        yield made


def test_slow_start_does_not_bind_reallocated_ids(room, choosers):
    asked, answered = threading.Event(), threading.Event()
    old = room.kubelet.admit(pod("old", container("a", 100, 2)))

    def choose(one):
        if one.uid == old.uid:
            asked.set()
            assert answered.wait(waiting.PROMPT)
        return placement.NOTHING

    choosers.append(choose)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        slow = pool.submit(room.start, old, "a")
        assert asked.wait(waiting.PROMPT)
        room.kubelet.remove(old)  # during the request to the API server
        new = room.kubelet.admit(pod("new", container("a", 100, 2)))
        grant = room.start(new, "a")
        answered.set()
        with pytest.raises(StartError, match="have changed meanwhile"):
            slow.result()
    assert room.checkpoint.grants == {
        grant.id: grant,
        **{
            unbound.id: unbound for unbound in room.checkpoint.grants.values() if not unbound.bound
        },
    }
    assert room.start(new, "a") == grant


def test_list_from_before_a_kubelet_restart_binds_nothing(room, choosers):
    one = room.kubelet.admit(pod("p", container("a", 60, 2)))
    restarts = [True]

    def choose(_):
        if restarts:
            restarts.clear()
            room.kubelet.stop()
            room.kubelet.start()
            room.kubelet.until_offered()
        return placement.NOTHING

    choosers.append(choose)
    answered = queue.Queue()
    room.grant_manager.start(
        device_ids.ResourceKind.VCORE, room.kubelet.ids(one, "a", VCORE), answered.put
    )
    assert "kubelet has restarted" in str(answered.get(timeout=waiting.PROMPT))
    assert not room.folders.made
    assert grant_room.text(room.start(one, "a")) == "60 2 GPU-0"


def test_grant_that_ended_before_its_files_is_not_made(room, monkeypatch):
    make = room.folders.make

    def make_and_end_the_others(grant):
        make(grant)
        room.grant_manager.end(lambda other: other.id != grant.id)

    monkeypatch.setattr(room.folders, "make", make_and_end_the_others)
    both = room.kubelet.admit(pod("both", container("a", 30, 2), container("b", 30, 2)))
    with pytest.raises(StartError, match="was given to another"):
        room.start(both, "a")
    assert len(room.folders.made) == len(room.checkpoint.grants) == 1
