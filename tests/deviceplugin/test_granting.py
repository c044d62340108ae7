"""Every container gets its own quota, whatever the order and whoever restarts."""

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

from pyvgpu.deviceplugin import ids


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as made:
        yield made


def test_a_container_gets_what_it_asked(room):
    assert room.run(pod("p", container("a", 30, 2)), "a") == "30 2 GPU-0"


def test_each_container_of_a_pod_has_its_own(room):
    two = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 70, 6)))
    assert grant_room.text(room.start(two, "b")) == "70 6 GPU-0"
    assert grant_room.text(room.start(two, "a")) == "30 2 GPU-0"


def test_forty_pods_at_once_each_have_their_own(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(8)) as room:
        shapes = [(10 + it % 7, 1 + it % 2) for it in range(40)]
        pods = [
            kubelet.admit(pod(f"p{it}", container("a", *shape))) for it, shape in enumerate(shapes)
        ]
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            got = list(pool.map(lambda it: room.start(it, "a"), pods))
        assert [it.owner.uid for it in got] == [it.uid for it in pods]
        assert [grant_room.text(it).rpartition(" ")[0] for it in got] == [
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
def test_init_and_app_containers_each_have_their_own(room, init, app):
    both = pod("p", container("i", *init, init=True), container("a", *app))
    room.kubelet.admit(both)
    for name, (vcore, units) in (("i", init), ("a", app), ("i", init)):
        grant = room.start(both, name)
        assert grant.owner.container == name
        assert grant_room.text(grant) == f"{vcore} {units} GPU-0"
    rest = pod("q", container("a", 100 - max(init[0], app[0]), 16 - max(init[1], app[1])))
    assert room.run(rest, "a").endswith(" GPU-0")  # what is free there is what kubelet counts


def test_a_pod_with_nothing_but_an_init_container_has_its_own(room):
    only = pod("p", container("i", 40, 3, init=True), container("a", 0, 0))
    assert room.run(only, "i") == "40 3 GPU-0"


def test_init_containers_beside_a_native_sidecar_are_counted_together(room):
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


def test_two_pods_of_one_shape_are_told_apart(room):
    first, second = (room.kubelet.admit(pod(name, container("a", 30, 2))) for name in "pq")
    assert room.start(second, "a").owner.pod == "q"
    assert room.start(first, "a").owner.pod == "p"


def test_a_pod_that_comes_again_under_its_name_has_a_new_grant(room):
    old = room.kubelet.admit(pod("web-0", container("a", 30, 2)))
    before = room.start(old, "a")
    room.kubelet.remove(old)
    new = room.kubelet.admit(pod("web-0", container("a", 60, 4)))
    after = room.start(new, "a")
    assert (after.owner.uid, grant_room.text(after)) == (new.uid, "60 4 GPU-0")
    room.granter.collect()
    assert set(room.folders.made) == {after.id} != {before.id}


def test_a_restarted_container_is_answered_from_memory(room):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    first = room.start(one, "a")
    asked = room.kubelet.lists
    room.kubelet.refuse_lists = 10**6
    assert room.start(one, "a") == first
    assert room.kubelet.lists == asked


def test_what_is_made_for_one_resource_is_made_for_the_other_and_anew_at_the_next_start(room):
    two = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 30, 2)))
    made = [room.start(two, name).id for name in ("a", "b")]
    assert [room.folders.times[it] for it in made] == [1, 1]  # at once, when "a" was bound
    for name in ("a", "a", "b"):
        room.start(two, name)
    assert [room.folders.times[it] for it in made] == [3, 2]


def test_a_container_that_starts_while_kubelet_forgot_us_has_its_own_and_no_other(
    kubelet, tmp_path
):
    has = grant_room.devices(1)
    with grant_room.running(kubelet, tmp_path, has) as room:
        one = kubelet.admit(pod("p", container("a", 30, 2), container("late", 20, 1)))
        before = room.start(one, "a")
        unbound = kubelet.admit(pod("q", container("a", 30, 2)))
        made = set(room.folders.made)
    kubelet.stop()
    kubelet.start()  # the agent is away: PreStartContainer is left out
    (device,) = kubelet.start_container(one, "a").cdi_devices
    assert device.endswith(before.id)
    (device,) = kubelet.start_container(unbound, "a").cdi_devices
    assert device.partition("=")[2] not in made  # so it would not start
    with grant_room.running(kubelet, tmp_path, has) as room:
        assert room.start(one, "a") == before
        assert room.start(unbound, "a").owner.pod == "q"


def test_an_agent_that_remembers_nothing_learns_it_from_kubelet(kubelet, tmp_path):
    has = grant_room.devices(1)
    with grant_room.running(kubelet, tmp_path / "one", has):
        one = kubelet.admit(pod("p", container("a", 30, 2)))
    with grant_room.running(kubelet, tmp_path / "two", has) as room:
        assert grant_room.text(room.start(one, "a")) == "30 2 GPU-0"


def test_ids_that_are_given_again_end_the_grant_that_had_them(room):
    old = room.kubelet.admit(pod("p", container("a", 100, 16)))
    before = room.start(old, "a")
    other = room.kubelet.admit(pod("r", container("a", 100, 16)))
    room.start(other, "a")
    room.kubelet.remove(old)
    new = room.kubelet.admit(pod("q", container("a", 60, 4)))
    assert before.id not in room.folders.made  # before anything of the new pod starts
    assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"
    assert {it.owner.pod for it in room.folders.made.values()} == {"q", "r"}


def test_what_a_process_still_uses_is_given_to_nobody(room):
    kubelet = room.kubelet
    old = kubelet.admit(pod("p", container("a", 60, 4)))
    grant = room.start(old, "a")
    room.folders.used.add(grant.id)
    kubelet.remove(old)
    room.granter.collect()
    assert room.folders.revoked == {grant.id}
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 140)
    kubelet.until(lambda: len(kubelet.healthy(VMEMORY)) == 28)
    assert room.run(pod("q", container("a", 60, 4)), "a") == "60 4 GPU-1"
    room.folders.used.clear()
    room.granter.collect()
    assert grant.id not in room.folders.made
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_who_lives_on_keeps_nobody_from_ids_and_room_comes_when_he_ends(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1)) as room:
        old = kubelet.admit(pod("p", container("a", 60, 4)))
        grant = room.start(old, "a")
        room.folders.used.add(grant.id)
        kubelet.remove(old)
        new = kubelet.admit(pod("q", container("a", 60, 4)))  # the ids of the other
        assert room.folders.revoked == {grant.id}
        with pytest.raises(StartError, match="there is no room on this node"):
            room.start(new, "a")
        room.folders.used.clear()
        room.granter.collect()
        assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"


def test_what_processes_keep_is_remembered_by_the_next_agent(kubelet, tmp_path):
    has = grant_room.devices(2)
    with grant_room.running(kubelet, tmp_path, has) as room:
        old = kubelet.admit(pod("p", container("a", 60, 4)))
        grant = room.start(old, "a")
        room.folders.used.add(grant.id)
        kubelet.remove(old)
        room.granter.collect()
    with grant_room.running(kubelet, tmp_path, has) as room:
        room.folders.used.add(grant.id)
        assert grant.id not in room.folders.made  # nor made again
        assert room.run(pod("q", container("a", 60, 4)), "a") == "60 4 GPU-1"


def test_another_profile_takes_no_grant_from_who_runs_and_gives_it_to_nobody(kubelet, tmp_path):
    has = grant_room.devices(2)
    core, memory = (it.name for it in ids.GAIA)

    def are_left(vcore, vmemory):
        kubelet.until(lambda: len(kubelet.healthy(vcore)) == 140)
        kubelet.until(lambda: len(kubelet.healthy(vmemory)) == 28)

    with grant_room.running(kubelet, tmp_path, has) as room:
        ours = room.start(kubelet.admit(pod("ours", container("a", 60, 4))), "a")
    with grant_room.running(kubelet, tmp_path, has, ids.GAIA) as room:
        are_left(core, memory)
        room.granter.collect()
        assert room.folders.made == {ours.id: ours}
        other = kubelet.admit(pod("theirs", Container("a", {core: 60, memory: 4})))
        theirs = room.start(other, "a")
        assert grant_room.text(theirs) == "60 4 GPU-1"
    with grant_room.running(kubelet, tmp_path, has) as room:
        are_left(VCORE, VMEMORY)
        room.granter.collect()
        assert room.folders.made == {ours.id: ours, theirs.id: theirs}
        kubelet.remove(other)
        room.granter.collect()
        kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_a_kubelet_that_has_just_begun_and_lists_nobody_ends_nothing(room):
    kubelet = room.kubelet
    one = kubelet.admit(pod("p", container("a", 60, 4)))
    grant = room.start(one, "a")
    kubelet.change_list = lambda listed: []
    kubelet.stop()
    kubelet.start()
    kubelet.until_offered()
    room.granter.collect()
    assert room.folders.made == {grant.id: grant}
    kubelet.change_list = lambda listed: listed
    room.granter.collect()
    kubelet.remove(one)
    room.granter.collect()
    assert not room.folders.made


def test_grants_of_pods_that_are_over_are_collected(room):
    pods = [room.kubelet.admit(pod(f"p{it}", container("a", 20, 2))) for it in range(3)]
    kept = [room.start(it, "a") for it in pods][1:]
    room.kubelet.remove(pods[0])
    room.granter.collect()
    assert set(room.folders.made) == {it.id for it in kept} == set(room.checkpoint.grants)


def test_a_grant_that_kubelet_never_took_is_forgotten_after_a_while(kubelet, tmp_path):
    now = [1000.0]
    sizes = {"clock": lambda: now[0]}
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1), **sizes) as room:
        room.granter.allocate(ids.Kind.VCORE, frozenset({"c0"}))
        kubelet.write()
        for seconds, left in ((0, 1), (59, 1), (2, 0)):
            now[0] += seconds
            room.granter.collect()
            assert len(room.checkpoint.grants) == left


# --- whole devices, and devices that are sick -----------------------------------------------


def test_a_whole_device_takes_the_memory_that_nobody_asked_for(room):
    assert room.run(pod("p", container("a", 100, 0)), "a") == "100 16 GPU-0"
    room.kubelet.until(lambda: len(room.kubelet.healthy(VMEMORY)) == 16)
    assert len(room.kubelet.healthy(VCORE)) == 200
    assert room.run(pod("q", container("a", 50, 16)), "a") == "50 16 GPU-1"


def test_two_whole_devices_are_two(room):
    assert room.run(pod("p", container("a", 200, 0)), "a") == "100 16 GPU-0 + 100 16 GPU-1"


def test_a_sick_device_takes_its_own_ids_and_free_ones_and_no_others(room):
    kubelet = room.kubelet
    first = kubelet.admit(pod("p", container("a", 60, 4)))
    second = kubelet.admit(pod("q", container("a", 60, 4)))
    assert [room.start(it, "a").shares[0].uuid for it in (first, second)] == ["GPU-0", "GPU-1"]
    well, ill = grant_room.devices(2)
    room.granter.see([well, *grant_room.devices(2, sick="XID 79")[1:]])
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 100)
    kubelet.until(lambda: len(kubelet.healthy(VMEMORY)) == grant_room.UNITS)
    assert kubelet.ids(first, "a", VCORE) <= kubelet.healthy(VCORE)
    assert not kubelet.ids(second, "a", VCORE) & kubelet.healthy(VCORE)
    assert not kubelet.ids(second, "a", VMEMORY) & kubelet.healthy(VMEMORY)
    room.granter.see([well, ill])
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_a_container_that_is_to_start_on_a_sick_device_waits_and_is_given_up(kubelet, tmp_path):
    now, told = [0.0], []
    with grant_room.running(
        kubelet, tmp_path, grant_room.devices(1), clock=lambda: now[0]
    ) as room:
        room.granter.tell = told.append
        both = kubelet.admit(pod("p", container("i", 30, 2, init=True), container("a", 30, 2)))
        room.start(both, "i")
        room.granter.see(grant_room.devices(1, sick="XID 79"))
        for seconds in (0, 59, 2):
            now[0] += seconds
            assert not told
            with pytest.raises(StartError, match="on a sick device: GPU-0 .XID 79."):
                room.start(both, "a")
        (event,) = told
        assert (event.uid, event.name, event.evict) == (both.uid, "p", True)
        room.granter.see(grant_room.devices(1))
        assert grant_room.text(room.start(both, "a")) == "30 2 GPU-0"


def test_nothing_new_comes_to_a_cordoned_device_and_what_is_there_goes_on(room):
    kubelet = room.kubelet
    first = kubelet.admit(pod("p", container("a", 30, 4)))
    room.start(first, "a")
    other = grant_room.devices(2)[1]
    room.granter.see([*grant_room.devices(1, cordoned=True), other])
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
    assert not any(it.bound and it.owner.uid == new.uid for it in room.checkpoint.grants.values())
    return str(caught.value)


def test_150_vcore_are_refused_at_once(room):
    with pytest.raises(AdmissionError, match="vcore 150: above 100 it must be a multiple of 100"):
        room.kubelet.admit(pod("p", container("a", 150, 4)))
    assert not room.checkpoint.grants


def test_vcore_without_vmemory_is_refused(room):
    said = refused(room, pod("p", container("a", 30, 0)), "a")
    assert "container a: vcore 30 without vmemory" in said


def test_vmemory_without_vcore_is_refused(room):
    said = refused(room, pod("p", container("a", 0, 3)), "a")
    assert "container a: vmemory without vcore" in said


def test_one_bad_container_holds_the_whole_pod(room):
    new = pod("p", container("a", 30, 2), container("b", 30, 0))
    assert "container b: vcore 30 without vmemory" in refused(room, new, "a")


def test_more_memory_than_a_device_has_is_refused(room):
    said = refused(room, pod("p", container("a", 30, 20)), "a")
    assert "there is no room on this node" in said
    assert "has 4GiB in all, 5GiB of one device are asked" in said


def test_what_fits_the_node_and_no_device_is_refused_and_goes_once_there_is_room(room):
    first = room.kubelet.admit(pod("p", container("a", 60, 4)))
    for each in (first, room.kubelet.admit(pod("q", container("a", 60, 4)))):
        room.start(each, "a")
    new = pod("r", container("a", 60, 4))
    assert "needs 60 vcore, has 40 free (default/p 60 vcore 1GiB)" in refused(room, new, "a")
    room.kubelet.remove(first)
    room.granter.collect()
    assert grant_room.text(room.start(new, "a")) == "60 4 GPU-0"


def test_podresources_that_are_away_or_slow_are_a_doubt_that_passes(room):
    room.kubelet.refuse_lists = 10**6
    new = pod("p", container("a", 30, 2))
    assert "it is not known yet which pod this is for" in refused(room, new, "a")
    room.kubelet.refuse_lists = 0
    assert grant_room.text(room.start(new, "a")) == "30 2 GPU-0"


def test_podresources_that_say_something_else_are_a_doubt(room):
    new = pod("p", container("a", 30, 2))

    def renamed(listed):
        for it in listed:
            it.containers[0].name = "b"
        return listed

    room.kubelet.change_list = renamed
    assert "by PodResources that others have by kubelet's checkpoint" in refused(room, new, "a")


def test_a_grant_of_another_pod_is_taken_from_nobody(room):
    first = room.kubelet.admit(pod("p", container("a", 30, 2)))
    room.start(first, "a")
    second = room.kubelet.admit(pod("q", container("a", 30, 2)))
    held = room.kubelet.held
    held[second.uid, "a", VCORE] = (
        held[second.uid, "a", VCORE][0],
        held[first.uid, "a", VCORE][1],
    )
    room.kubelet.write()
    with pytest.raises(StartError, match="comes with grant .* which is that of default/p/a"):
        room.start(second, "a")
