"""Pods on a full node wait, and are never evicted for that."""

import contextlib
import dataclasses

import grant_room
import pytest
from fake_kubelet import VCORE, StartError, container, pod

from pyvgpu.allocator import annotations, datatypes
from pyvgpu.deviceplugin.cluster import scheduler_choice
from pyvgpu.deviceplugin.grants import interfaces

LATE = 24 * 3600.0  # far beyond --bind-deadline
NO_ROOM = "there is no room on this node for now: "
FULL = (
    f"{NO_ROOM}gpu0 needs 70 vcore, has 40 free (default/p0 60 vcore 1GiB); "
    "gpu1 needs 70 vcore, has 40 free (default/p1 60 vcore 1GiB)"
)


class Node:
    """An agent on a node of two devices, with its events."""

    def __init__(self, room, now):
        self.room, self.now, self.posted = room, now, []
        self.kubelet = room.kubelet
        room.grant_manager.observers.reported.add(self.posted.append)

    def fill(self, vcore=60):
        """Start a pod on each device."""
        made = [self.admit(f"p{index}", vcore) for index in range(2)]
        for one in made:
            self.room.start(one, "a")
        return made

    def admit(self, name, *vcore):
        parts = [container(each, asked, 4) for each, asked in zip("ab", vcore, strict=False)]
        return self.kubelet.admit(pod(name, *parts))

    def refused(self, one, name="a"):
        """Return why a container does not start, the same at two attempts far apart."""
        said = set()
        for _ in range(2):
            with pytest.raises(StartError) as caught:
                self.room.start(one, name)
            said.add(str(caught.value).removeprefix("pyvgpu: "))
            self.now[0] += LATE
        (text,) = said
        return text

    def see(self, *changes):
        """Apply these changes to the devices, one for each."""
        has = grant_room.devices(2)
        self.room.grant_manager.see(
            [
                dataclasses.replace(device, **it_is)
                for device, it_is in zip(has, changes, strict=True)
            ]
        )

    @property
    def evicted(self):
        return {event.name for event in self.posted if event.evict}

    @property
    def waiting(self):
        return {event.name for event in self.posted if event.reason == "VGPUWaits"}


@contextlib.contextmanager
def running(kubelet, tmp_path, **policy):
    now = [1000.0]
    has, starts = grant_room.devices(2), interfaces.StartPolicy(**policy)
    with grant_room.running(kubelet, tmp_path, has, policy=starts, clock=lambda: now[0]) as room:
        yield Node(room, now)


@pytest.fixture
def here(kubelet, tmp_path):
    with running(kubelet, tmp_path) as made:
        yield made


def test_pod_waits_while_the_node_is_full_and_then_runs(here):
    first, _ = here.fill()
    new = here.admit("new", 70)
    assert here.refused(new) == FULL
    assert {(event.name, event.text, event.evict) for event in here.posted} == {
        ("new", FULL, False)
    }
    here.kubelet.remove(first)
    assert grant_room.text(here.room.start(new, "a")) == "70 4 GPU-0"
    assert here.evicted == set()


def test_room_freed_a_moment_ago_is_used_at_the_next_start(here):
    """Although the new pod has other ids than the one that has ended."""
    first, second = here.fill()
    given = here.kubelet.ids(first, "a", VCORE) | here.kubelet.ids(second, "a", VCORE)
    here.kubelet.insists[VCORE] = frozenset(sorted(here.kubelet.healthy(VCORE) - given)[:70])
    new = here.admit("new", 70)
    here.refused(new)
    here.kubelet.remove(first)
    assert grant_room.text(here.room.start(new, "a")) == "70 4 GPU-0"


UNHEALTHY, CORDONED, DRA = {"unhealthy": "Xid 79"}, {"cordoned": True}, {"allocated_by": "dra"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(({}, UNHEALTHY), "gpu1 is unhealthy: Xid 79", id="one unhealthy"),
        pytest.param(({}, CORDONED), "gpu1 is cordoned", id="one cordoned"),
        pytest.param((CORDONED, CORDONED), "gpu0 is cordoned", id="both cordoned"),
        pytest.param(({}, DRA), "gpu1 is allocated by dra", id="one for claims"),
        pytest.param((DRA, DRA), "gpu0 is allocated by dra", id="both for claims"),
    ],
)
def test_pod_that_fits_an_empty_node_waits(here, changes, words):
    here.fill()
    new = here.admit("new", 70)
    here.see(*changes)
    assert words in here.refused(new)
    assert (here.waiting, here.evicted) == ({"new"}, set())


def test_pod_is_evicted_when_all_devices_stay_unhealthy(here):
    new = here.admit("new", 70)
    here.see(UNHEALTHY, UNHEALTHY)
    assert "gpu0 is unhealthy: Xid 79; gpu1 is unhealthy: Xid 79" in here.refused(new)
    assert (here.waiting, here.evicted) == (set(), {"new"})


def test_pod_waits_for_processes_of_a_finished_pod(here):
    first, _ = here.fill()
    (grant,) = [
        candidate for candidate in here.room.folders.made.values() if candidate.owner.pod == "p0"
    ]
    here.room.folders.used.add(grant.id)
    here.kubelet.remove(first)
    here.room.grant_manager.collect()
    new = here.admit("new", 70)
    here.refused(new)
    assert (here.waiting, here.evicted) == ({"new"}, set())
    here.room.folders.used.clear()
    here.room.grant_manager.collect()
    assert grant_room.text(here.room.start(new, "a")) == "70 4 GPU-0"


def test_pod_that_fits_no_empty_device_is_refused_for_good(here):
    here.fill(vcore=10)
    new = here.kubelet.admit(pod("new", container("a", 10, 17)))
    with pytest.raises(StartError, match="4GiB in all, 4.2GiB of one device are asked"):
        here.room.start(new, "a")
    assert (here.waiting, here.evicted) == (set(), {"new"})


def test_pod_is_placed_with_all_its_containers_or_waits(here):
    first, _ = here.fill()
    new = here.admit("new", 20, 50)
    here.refused(new, "a")
    here.refused(new, "b")
    assert len(here.room.folders.made) == 2  # the waiting pod holds nothing
    assert (here.waiting, here.evicted) == ({"new"}, set())
    here.kubelet.remove(first)
    assert grant_room.text(here.room.start(new, "b")) == "50 4 GPU-0"
    assert grant_room.text(here.room.start(new, "a")) == "20 4 GPU-1"


def test_waiting_pod_that_fits_starts_first(here):
    first, _ = here.fill()
    large, small = here.admit("large", 45), here.admit("small", 35)
    here.refused(large)
    assert grant_room.text(here.room.start(small, "a")) == "35 4 GPU-0"
    here.refused(large)
    here.kubelet.remove(first)
    assert grant_room.text(here.room.start(large, "a")) == "45 4 GPU-0"
    assert here.evicted == set()


@pytest.mark.slow
def test_doubt_after_a_long_wait_has_a_new_deadline(here):
    here.fill()
    new = here.admit("new", 70)
    here.kubelet.refuse_lists = 10**6
    with pytest.raises(StartError, match="the pod of this container is not known yet"):
        here.room.start(new, "a")
    here.kubelet.refuse_lists = 0
    here.refused(new)
    here.kubelet.refuse_lists = 10**6
    with pytest.raises(StartError, match="the pod of this container is not known yet"):
        here.room.start(new, "a")
    assert here.evicted == set()


# --- pods that hold a share already: the agent has lost the rest ---------------------------


def lose(here, one, name):
    """Make the agent lose a grant."""
    (grant,) = [
        candidate
        for candidate in here.room.checkpoint.grants.values()
        if candidate.owner and (candidate.owner.uid, candidate.owner.container) == (one.uid, name)
    ]
    here.room.checkpoint.drop(grant.id)
    here.room.folders.remove(grant.id)


def grow(here, one, name, vcore):
    """Add a container to a running pod, as after such a loss."""
    more = dataclasses.replace(one, containers=(*one.containers, container(name, vcore, 4)))
    here.kubelet.pods[one.uid] = more
    here.kubelet.allocate_again(more, name)
    return more


def test_pod_that_holds_a_share_waits_for_the_rest(here):
    one = here.admit("one", 60, 60)
    here.room.start(one, "a")
    lose(here, one, "b")
    here.kubelet.until(lambda: here.kubelet.healthy(VCORE))
    other = here.admit("other", 70)
    here.room.start(other, "a")
    assert NO_ROOM in here.refused(one, "b")
    assert (here.waiting, here.evicted) == ({"one"}, set())
    here.kubelet.remove(other)
    assert grant_room.text(here.room.start(one, "b")) == "60 4 GPU-1"


def test_pod_whose_rest_can_never_fit_is_refused_for_good(here):
    one = here.admit("one", 60, 60)
    here.room.start(one, "a")
    more = grow(here, one, "c", 50)
    with pytest.raises(StartError, match="there is no room on this node: "):
        here.room.start(more, "c")
    assert (here.waiting, here.evicted) == (set(), {"one"})


def test_of_two_deadlocked_pods_the_second_is_evicted(kubelet, tmp_path):
    now = [1000.0]
    has = grant_room.devices(3)
    with grant_room.running(kubelet, tmp_path, has, clock=lambda: now[0]) as room:
        here = Node(room, now)
        one, two = here.admit("one", 60, 60), here.admit("two", 60)
        for waiter in (one, two):
            room.start(waiter, "a")
        one, two = (grow(here, waiter, "c", 50) for waiter in (one, two))
        here.refused(one, "c")
        assert (here.waiting, here.evicted) == ({"one"}, set())
        here.refused(two, "c")
        here.refused(one, "c")
        assert (here.waiting, here.evicted) == ({"one"}, {"two"})
        kubelet.remove(two)
        assert grant_room.text(room.start(one, "c")) == "50 4 GPU-2"


# --- devices chosen by the scheduler ---------------------------------------------------


@pytest.fixture
def sealed(kubelet, tmp_path, cluster):
    """The same with a scheduler's choices, which assign the first device twice."""
    key = b"k" * 32
    chooser = scheduler_choice.Sealed(cluster.pods, "node-1", lambda: (key,))
    with running(kubelet, tmp_path, choose=chooser.choose) as here:
        yield _sealing(here, cluster, key)


def _sealing(here, cluster, key):
    def admit(name, vcore):
        one = here.admit(name, vcore)
        share = datatypes.NodeShare("GPU-0", vcore, 4 * grant_room.UNIT)
        choice = annotations.DeviceChoice(one.uid, "node-1", {"a": (share,)})
        notes = {"pyvgpu.io/devices": annotations.seal(choice, key)}
        cluster.add(one, notes)
        return one

    here.choose = admit
    here.cluster = cluster
    return here


def test_pod_waits_while_the_chosen_device_is_full(sealed):
    first = sealed.choose("first", 60)
    sealed.room.start(first, "a")
    new = sealed.choose("new", 70)
    words = "the devices chosen for it cannot be given for now: gpu0 has 40 vcore and 3GiB free"
    assert words in sealed.refused(new)
    assert (sealed.waiting, sealed.evicted) == ({"new"}, set())
    sealed.kubelet.remove(first)
    assert grant_room.text(sealed.room.start(new, "a")) == "70 4 GPU-0"


def test_pod_is_evicted_if_its_chosen_device_was_cordoned(sealed):
    new = sealed.choose("new", 70)
    sealed.see(CORDONED, {})
    with pytest.raises(StartError, match="gpu0 is cordoned"):
        sealed.room.start(new, "a")
    assert sealed.evicted == {"new"}


def test_pods_wait_while_the_api_server_is_unavailable(sealed):
    new = sealed.choose("new", 70)
    sealed.cluster.api.go_down()
    assert "its choice of devices cannot be read yet" in sealed.refused(new)
    assert sealed.evicted == set()


# --- events and metrics ----------------------------------------------------------------


@pytest.mark.slow
def test_waiting_pod_gets_one_event_and_is_not_counted_as_refused(node, cluster):
    kubelet = node.kubelet
    node.start("--kubeconfig", cluster.kubeconfig, "--listen", "127.0.0.1:0")
    kubelet.until_offered()
    parts = [kubelet.admit(pod(f"p{number}", container("a", 60, 4))) for number in range(2)]
    for one in parts:
        cluster.add(one, {})
        kubelet.start_container(one, "a")
    new = kubelet.admit(pod("new", container("a", 70, 4)))
    cluster.add(new, {}, owned=True)
    for _ in range(3):
        with pytest.raises(StartError, match=NO_ROOM):
            kubelet.start_container(new, "a")
    node.until(lambda: cluster.events(new))
    (said,) = cluster.events(new)
    assert said.startswith(NO_ROOM)
    assert said.count("needs 70 vcore, has 40 free (default/p") == 2
    _, text = node.ask("/metrics")
    assert 'pyvgpu_kubelet_call_seconds_count{call="start",result="waits"} 3' in text
    assert 'pyvgpu_kubelet_call_seconds_count{call="start",result="refused"} 0' in text
    assert 'pyvgpu_grants{state="waiting"} 1' in text
    assert 'pyvgpu_grants{state="unbound"} 0' in text
    assert not cluster.evictions(new)
    kubelet.remove(parts[0])
    kubelet.start_container(new, "a")
    node.until(lambda: 'pyvgpu_grants{state="waiting"} 0' in node.ask("/metrics")[1])
    assert not cluster.evictions(new)
