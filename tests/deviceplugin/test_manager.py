"""Every container gets its own quota, in any order of calls and across restarts."""

import concurrent.futures

import grant_room
import pytest
from fake_kubelet import (
    VCORE,
    VMEMORY,
    AdmissionError,
    Container,
    StartError,
    container,
    pod,
)

from pyvgpu.deviceplugin.kubelet import device_ids


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as made:
        yield made


def test_container_gets_its_request(room):
    assert room.run(pod("p", container("a", 30, 2)), "a") == "30 2 GPU-0"


def test_each_container_of_a_pod_gets_a_grant(room):
    two = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 70, 6)))
    assert grant_room.text(room.start(two, "b")) == "70 6 GPU-0"
    assert grant_room.text(room.start(two, "a")) == "30 2 GPU-0"


def test_forty_concurrent_pods_get_distinct_grants(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(8)) as room:
        shapes = [(10 + number % 7, 1 + number % 2) for number in range(40)]
        pods = [
            kubelet.admit(pod(f"p{number}", container("a", *shape)))
            for number, shape in enumerate(shapes)
        ]
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            got = list(pool.map(lambda one: room.start(one, "a"), pods))
        assert [grant.owner.uid for grant in got] == [one.uid for one in pods]
        assert [grant_room.text(grant).rpartition(" ")[0] for grant in got] == [
            f"{vcore} {units}" for vcore, units in shapes
        ]
        assert kubelet.lists < 40


@pytest.mark.parametrize(
    ("init", "app"),
    [
        pytest.param((30, 2), (30, 2), id="init = app"),
        pytest.param((60, 8), (30, 2), id="init > app"),
        pytest.param((30, 2), (60, 8), id="init < app"),
        pytest.param((60, 2), (30, 8), id="both"),
    ],
)
def test_init_and_app_containers_get_distinct_grants(room, init, app):
    both = pod("p", container("i", *init, init=True), container("a", *app))
    room.kubelet.admit(both)
    for name, (vcore, units) in (("i", init), ("a", app), ("i", init)):
        grant = room.start(both, name)
        assert grant.owner.container == name
        assert grant_room.text(grant) == f"{vcore} {units} GPU-0"
    rest = pod("q", container("a", 100 - max(init[0], app[0]), 16 - max(init[1], app[1])))
    assert room.run(rest, "a").endswith(" GPU-0")  # its free capacity matches kubelet's count


def test_pod_with_only_an_init_container_gets_a_grant(room):
    only = pod("p", container("i", 40, 3, init=True), container("a", 0, 0))
    assert room.run(only, "i") == "40 3 GPU-0"


def test_init_containers_and_native_sidecar_are_counted_together(room):
    new = pod(
        "p",
        container("s", 40, 4, native=True),
        container("i", 50, 5, init=True),
        container("a", 60, 6),
    )
    room.kubelet.admit(new)
    got = {name: grant_room.text(room.start(new, name)) for name in ("s", "i", "a")}
    assert got == {"s": "40 4 GPU-0", "i": "50 5 GPU-0", "a": "60 6 GPU-0"}
    assert room.run(pod("q", container("a", 60, 6)), "a") == "60 6 GPU-1"


def test_identical_pods_get_distinct_grants(room):
    first, second = (room.kubelet.admit(pod(name, container("a", 30, 2))) for name in "pq")
    assert room.start(second, "a").owner.pod == "q"
    assert room.start(first, "a").owner.pod == "p"


def test_recreated_pod_gets_a_new_grant(room):
    old = room.kubelet.admit(pod("web-0", container("a", 30, 2)))
    before = room.start(old, "a")
    room.kubelet.remove(old)
    new = room.kubelet.admit(pod("web-0", container("a", 60, 4)))
    after = room.start(new, "a")
    assert (after.owner.uid, grant_room.text(after)) == (new.uid, "60 4 GPU-0")
    room.grant_manager.collect()
    assert set(room.folders.made) == {after.id} != {before.id}


def test_restarted_container_keeps_its_grant(room):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    first = room.start(one, "a")
    asked = room.kubelet.lists
    room.kubelet.refuse_lists = 10**6
    assert room.start(one, "a") == first
    assert room.kubelet.lists == asked


def test_files_are_checked_once_per_container_start(room):
    two = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 30, 2)))
    made = [room.start(two, name).id for name in ("a", "b")]
    assert [room.folders.times[key] for key in made] == [1, 1]  # at once, when "a" was bound
    for name in ("a", "a", "b"):
        room.start(two, name)
    assert [room.folders.times[key] for key in made] == [3, 2]


def test_start_while_the_agent_is_down_uses_no_other_grant(kubelet, tmp_path):
    has = grant_room.devices(1)
    with grant_room.running(kubelet, tmp_path, has) as room:
        one = kubelet.admit(pod("p", container("a", 30, 2), container("late", 20, 1)))
        before = room.start(one, "a")
        unbound = kubelet.admit(pod("q", container("a", 30, 2)))
        made = set(room.folders.made)
    kubelet.stop()
    kubelet.start()  # without an agent it omits PreStartContainer
    (device,) = kubelet.start_container(one, "a").cdi_devices
    assert device.endswith(before.id)
    (device,) = kubelet.start_container(unbound, "a").cdi_devices
    assert device.partition("=")[2] not in made  # so the container could not start
    with grant_room.running(kubelet, tmp_path, has) as room:
        assert room.start(one, "a") == before
        assert room.start(unbound, "a").owner.pod == "q"


def test_agent_without_checkpoint_recovers_from_kubelet(kubelet, tmp_path):
    has = grant_room.devices(1)
    with grant_room.running(kubelet, tmp_path / "one", has):
        one = kubelet.admit(pod("p", container("a", 30, 2)))
    with grant_room.running(kubelet, tmp_path / "two", has) as room:
        assert grant_room.text(room.start(one, "a")) == "30 2 GPU-0"


def test_reallocated_ids_end_the_former_grant(room):
    old = room.kubelet.admit(pod("p", container("a", 100, 16)))
    before = room.start(old, "a")
    other = room.kubelet.admit(pod("r", container("a", 100, 16)))
    room.start(other, "a")
    room.kubelet.remove(old)
    new = room.kubelet.admit(pod("q", container("a", 60, 4)))
    assert before.id not in room.folders.made  # before the new pod starts
    assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"
    assert {grant.owner.pod for grant in room.folders.made.values()} == {"q", "r"}


def test_share_in_use_by_a_process_is_not_granted(room):
    kubelet = room.kubelet
    old = kubelet.admit(pod("p", container("a", 60, 4)))
    grant = room.start(old, "a")
    room.folders.used.add(grant.id)
    kubelet.remove(old)
    room.grant_manager.collect()
    assert room.folders.revoked == {grant.id}
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 140)
    kubelet.until(lambda: len(kubelet.healthy(VMEMORY)) == 28)
    assert room.run(pod("q", container("a", 60, 4)), "a") == "60 4 GPU-1"
    room.folders.used.clear()
    room.grant_manager.collect()
    assert grant.id not in room.folders.made
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_surviving_process_frees_ids_at_once_and_room_at_its_end(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1)) as room:
        old = kubelet.admit(pod("p", container("a", 60, 4)))
        grant = room.start(old, "a")
        room.folders.used.add(grant.id)
        kubelet.remove(old)
        new = kubelet.admit(pod("q", container("a", 60, 4)))  # with the ids of the other pod
        assert room.folders.revoked == {grant.id}
        with pytest.raises(StartError, match="there is no room on this node"):
            room.start(new, "a")
        room.folders.used.clear()
        room.grant_manager.collect()
        assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"


def test_next_agent_knows_shares_held_by_processes(kubelet, tmp_path):
    has = grant_room.devices(2)
    with grant_room.running(kubelet, tmp_path, has) as room:
        old = kubelet.admit(pod("p", container("a", 60, 4)))
        grant = room.start(old, "a")
        room.folders.used.add(grant.id)
        kubelet.remove(old)
        room.grant_manager.collect()
    with grant_room.running(kubelet, tmp_path, has) as room:
        room.folders.used.add(grant.id)
        assert grant.id not in room.folders.made  # nor re-created
        assert room.run(pod("q", container("a", 60, 4)), "a") == "60 4 GPU-1"


def test_changed_profile_keeps_running_grants(kubelet, tmp_path):
    has = grant_room.devices(2)
    core, memory = (resource.name for resource in device_ids.GAIA)

    def are_left(vcore, vmemory):
        kubelet.until(lambda: len(kubelet.healthy(vcore)) == 140)
        kubelet.until(lambda: len(kubelet.healthy(vmemory)) == 28)

    with grant_room.running(kubelet, tmp_path, has) as room:
        ours = room.start(kubelet.admit(pod("ours", container("a", 60, 4))), "a")
    with grant_room.running(kubelet, tmp_path, has, device_ids.GAIA) as room:
        are_left(core, memory)
        room.grant_manager.collect()
        assert room.folders.made == {ours.id: ours}
        other = kubelet.admit(pod("theirs", Container("a", {core: 60, memory: 4})))
        theirs = room.start(other, "a")
        assert grant_room.text(theirs) == "60 4 GPU-1"
    with grant_room.running(kubelet, tmp_path, has) as room:
        are_left(VCORE, VMEMORY)
        room.grant_manager.collect()
        assert room.folders.made == {ours.id: ours, theirs.id: theirs}
        kubelet.remove(other)
        room.grant_manager.collect()
        kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_restarted_kubelet_that_lists_no_pod_ends_no_grant(room):
    kubelet = room.kubelet
    one = kubelet.admit(pod("p", container("a", 60, 4)))
    grant = room.start(one, "a")
    kubelet.change_list = lambda listed: []
    kubelet.stop()
    kubelet.start()
    kubelet.until_offered()
    room.grant_manager.collect()
    assert room.folders.made == {grant.id: grant}
    kubelet.change_list = lambda listed: listed
    room.grant_manager.collect()
    kubelet.remove(one)
    room.grant_manager.collect()
    assert not room.folders.made


def test_grants_of_finished_pods_are_collected(room):
    pods = [room.kubelet.admit(pod(f"p{number}", container("a", 20, 2))) for number in range(3)]
    kept = [room.start(one, "a") for one in pods][1:]
    room.kubelet.remove(pods[0])
    room.grant_manager.collect()
    assert set(room.folders.made) == {grant.id for grant in kept} == set(room.checkpoint.grants)


def test_grant_never_used_by_kubelet_ends_after_a_while(kubelet, tmp_path):
    now = [1000.0]
    sizes = {"clock": lambda: now[0]}
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1), **sizes) as room:
        room.grant_manager.allocate(device_ids.ResourceKind.VCORE, frozenset({"c0"}))
        kubelet.write()
        for seconds, left in ((0, 1), (59, 1), (2, 0)):
            now[0] += seconds
            room.grant_manager.collect()
            assert len(room.checkpoint.grants) == left


# --- whole devices, and unhealthy devices ---------------------------------------------------


def test_whole_device_takes_all_its_memory(room):
    assert room.run(pod("p", container("a", 100, 0)), "a") == "100 16 GPU-0"
    room.kubelet.until(lambda: len(room.kubelet.healthy(VMEMORY)) == 16)
    assert len(room.kubelet.healthy(VCORE)) == 200
    assert room.run(pod("q", container("a", 50, 16)), "a") == "50 16 GPU-1"


def test_two_whole_devices_are_distinct(room):
    assert room.run(pod("p", container("a", 200, 0)), "a") == "100 16 GPU-0 + 100 16 GPU-1"


def test_unhealthy_device_withdraws_its_own_and_free_ids_only(room):
    kubelet = room.kubelet
    first = kubelet.admit(pod("p", container("a", 60, 4)))
    second = kubelet.admit(pod("q", container("a", 60, 4)))
    assert [room.start(one, "a").shares[0].uuid for one in (first, second)] == ["GPU-0", "GPU-1"]
    well, ill = grant_room.devices(2)
    room.grant_manager.see([well, *grant_room.devices(2, unhealthy="XID 79")[1:]])
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 100)
    kubelet.until(lambda: len(kubelet.healthy(VMEMORY)) == grant_room.UNITS)
    assert kubelet.ids(first, "a", VCORE) <= kubelet.healthy(VCORE)
    assert not kubelet.ids(second, "a", VCORE) & kubelet.healthy(VCORE)
    assert not kubelet.ids(second, "a", VMEMORY) & kubelet.healthy(VMEMORY)
    room.grant_manager.see([well, ill])
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_restart_on_an_unhealthy_device_is_evicted_after_the_deadline(kubelet, tmp_path):
    now, posted = [0.0], []
    with grant_room.running(
        kubelet, tmp_path, grant_room.devices(1), clock=lambda: now[0]
    ) as room:
        room.grant_manager.observers.reported.add(posted.append)
        both = kubelet.admit(pod("p", container("i", 30, 2, init=True), container("a", 30, 2)))
        room.start(both, "i")
        room.grant_manager.see(grant_room.devices(1, unhealthy="XID 79"))
        for seconds in (0, 59, 2):
            now[0] += seconds
            assert not posted
            with pytest.raises(StartError, match="a granted device is unhealthy: GPU-0 .XID 79."):
                room.start(both, "a")
        (event,) = posted
        assert (event.uid, event.name, event.evict) == (both.uid, "p", True)
        room.grant_manager.see(grant_room.devices(1))
        assert grant_room.text(room.start(both, "a")) == "30 2 GPU-0"


def test_cordoned_device_keeps_running_containers_only(room):
    kubelet = room.kubelet
    first = kubelet.admit(pod("p", container("a", 30, 4)))
    room.start(first, "a")
    other = grant_room.devices(2)[1]
    room.grant_manager.see([*grant_room.devices(1, cordoned=True), other])
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 130)
    assert kubelet.ids(first, "a", VCORE) <= kubelet.healthy(VCORE)
    assert room.run(pod("q", container("a", 30, 4)), "a") == "30 4 GPU-1"
    room.start(first, "a")


# --- refusals --------------------------------------------------------------------------------


def refused(room, new, name):
    """Return why a container does not start; nothing may have been granted."""
    before = dict(room.folders.made)
    room.kubelet.admit(new)
    with pytest.raises(StartError) as caught:
        room.start(new, name)
    assert room.folders.made == before
    assert not any(
        grant.bound and grant.owner.uid == new.uid for grant in room.checkpoint.grants.values()
    )
    return str(caught.value)


def test_150_vcore_are_refused_at_allocate(room):
    with pytest.raises(AdmissionError, match="vcore 150: above 100 it must be a multiple of 100"):
        room.kubelet.admit(pod("p", container("a", 150, 4)))
    assert not room.checkpoint.grants


def test_vcore_without_vmemory_is_refused(room):
    said = refused(room, pod("p", container("a", 30, 0)), "a")
    assert "container a: vcore 30 without vmemory" in said


def test_vmemory_without_vcore_is_refused(room):
    said = refused(room, pod("p", container("a", 0, 3)), "a")
    assert "container a: vmemory without vcore" in said


def test_invalid_container_blocks_its_whole_pod(room):
    new = pod("p", container("a", 30, 2), container("b", 30, 0))
    assert "container b: vcore 30 without vmemory" in refused(room, new, "a")


def test_more_memory_than_a_device_has_is_refused(room):
    said = refused(room, pod("p", container("a", 30, 20)), "a")
    assert "there is no room on this node" in said
    assert "has 4GiB in all, 5GiB of one device are asked" in said


def test_pod_starts_once_one_device_has_room(room):
    first = room.kubelet.admit(pod("p", container("a", 60, 4)))
    for each in (first, room.kubelet.admit(pod("q", container("a", 60, 4)))):
        room.start(each, "a")
    new = pod("r", container("a", 60, 4))
    assert "needs 60 vcore, has 40 free (default/p 60 vcore 1GiB)" in refused(room, new, "a")
    room.kubelet.remove(first)
    room.grant_manager.collect()
    assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"


def test_unavailable_podresources_are_a_temporary_doubt(room):
    room.kubelet.refuse_lists = 10**6
    new = pod("p", container("a", 30, 2))
    assert "the pod of this container is not known yet" in refused(room, new, "a")
    room.kubelet.refuse_lists = 0
    assert grant_room.text(room.start(new, "a")) == "30 2 GPU-0"


def test_contradicting_podresources_are_a_doubt(room):
    new = pod("p", container("a", 30, 2))

    def renamed(listed):
        for entry in listed:
            entry.containers[0].name = "b"
        return listed

    room.kubelet.change_list = renamed
    assert "by PodResources that others have in kubelet's checkpoint" in refused(room, new, "a")


def test_forged_grant_id_of_another_pod_is_refused(room):
    first = room.kubelet.admit(pod("p", container("a", 30, 2)))
    room.start(first, "a")
    second = room.kubelet.admit(pod("q", container("a", 30, 2)))
    held = room.kubelet.held
    held[second.uid, "a", VCORE] = (
        held[second.uid, "a", VCORE][0],
        held[first.uid, "a", VCORE][1],
    )
    room.kubelet.write()
    with pytest.raises(StartError, match="has grant .* which belongs to default/p/a"):
        room.start(second, "a")
