"""Pods whose reservations exceed a device: idle ones are suspended, and no neighbour fails."""

import shutil

import judge
import pytest
import suspended_pod
import waiting
from fake_kubelet import StartError
from node_process import UNIT

from pyvgpu import names
from pyvgpu.allocator import suspensions

SHARE = (60, 36)  # two do not fit on a device at once
WORK = (
    "go = threading.Event(); thread = threading.Thread(target=lambda: (context(), "
    "[(is_intact(p), time.sleep(0.02)) for _ in iter(go.is_set, True)]), daemon=True); "
    "thread.start()"
)
OPTIONS = (
    *("--oversubscribe", "2", "--oversubscribe-idle", "1"),
    *("--oversubscribe-slice", "2", "--oversubscribe-moves", "60"),
)


@pytest.fixture(name="room")
def fixture_room(node, cluster, tmp_path):
    with suspended_pod.room(node, cluster, tmp_path, OPTIONS) as made:
        yield made


def test_ids_and_annotation_are_those_of_twice_the_devices(room):
    waiting.wait_until(lambda: room.cluster.text)
    devices = room.cluster.published.devices
    assert [device.reservable for device in devices] == [200, 200]
    kubelet = room.node.kubelet
    kubelet.until(lambda: len(kubelet.healthy(names.VCORE_RESOURCE)) == 400)
    units = sum(2 * device.memory_bytes // UNIT for device in devices)
    kubelet.until(lambda: len(kubelet.healthy(names.VMEMORY_RESOURCE)) == units)


def test_idle_pods_make_room_and_continue_with_every_byte(room):
    with (
        room.tenant("a", share=SHARE) as a,
        room.tenant("b", share=SHARE) as b,
        room.tenant("c", share=SHARE) as c,
    ):
        (moved,) = [x for x in (a, b) if x.answer.get("state") == "suspended"]
        waiting.wait_until(lambda: moved.events)
        assert "it was idle, and others need the room; it is resumed when" in moved.events[0]
        for tenant in (a, b, c, moved):
            assert tenant.program.ask("is_intact(p)") is True
        assert moves(room, "suspend") >= 1
        waiting.wait_until(lambda: moves(room, "resume") >= 1)


def moves(room, action):
    """Return how many moves of a kind the policy has begun."""
    return sum(room.metrics("pyvgpu_oversubscription_moves_total", f'action="{action}"'))


def test_pods_that_work_are_left_alone_and_the_newcomer_waits(room):
    with room.tenant("a", share=SHARE) as a, room.tenant("b", share=SHARE) as b:
        for tenant in (a, b):
            tenant.program.send(WORK)
        late = room.place("late", share=SHARE)
        with pytest.raises(StartError, match="there is no room for it now: it needs 9GiB and 60"):
            room.node.kubelet.start_container(late, "main")
        waiting.wait_until(lambda: any("no room" in x for x in room.cluster.events(late)))
        assert [mark.gated for mark in room.quotas()] == [False] * 3
        assert waiting_pods(room) == 1
        for tenant in (a, b):
            tenant.program.send("go.set()")
        with room.running(late) as c:
            for tenant in (a, b, c):
                assert tenant.program.ask("is_intact(p)") is True


def waiting_pods(room):
    """Return how many pods wait for room."""
    return sum(room.metrics("pyvgpu_device_waiting_pods"))


def test_agent_killed_after_it_suspended_an_idle_pod(room):
    with (
        room.tenant("a", share=SHARE) as a,
        room.tenant("b", share=SHARE) as b,
        room.tenant("c", share=SHARE) as c,
    ):
        (moved,) = [x for x in (a, b) if x.answer.get("state") == "suspended"]
        room.kill()
        room.start()
        moved.program.send("answer(is_intact(p))")
        assert moved.program.answer() is True
        for tenant in (a, b, c):
            assert tenant.program.ask("is_intact(p)") is True


def test_after_a_reboot_only_pods_that_fit_start(room):
    """Kubelet starts all of them; those without room wait until others are idle."""
    placed = [room.place(name, share=SHARE) for name in "abcd"]
    programs = []
    with room.running(placed[0]) as a, room.running(placed[1]) as b:
        programs += [a.program, b.program]
    room.kill()
    shutil.rmtree(room.node.files)
    room.start()
    room.node.kubelet.until_offered()
    refusals = [refusal_of(room, pod) for pod in placed]
    assert refusals.count("") == 2
    assert sum(suspended_pod.NO_ROOM in refusal for refusal in refusals) == 2
    for pod in placed:
        with room.running(pod) as tenant:
            assert tenant.program.ask("is_intact(p)") is True


def refusal_of(room, pod):
    """Start a pod's container; return why it is refused, or nothing."""
    try:
        room.node.kubelet.start_container(pod, "main")
    except StartError as exc:
        return str(exc)
    return ""


def test_user_releases_the_reservation_and_takes_it_back(room):
    with room.tenant("a", share=SHARE) as a, room.tenant("b", share=SHARE) as b:
        b.program.send(WORK)
        a.annotate(suspend=suspensions.RELEASE)
        a.until("suspended")
        assert a.answer["requested"] == suspensions.RELEASE
        with room.tenant("c", share=SHARE) as c:
            a.program.send("answer(is_intact(p))")
            assert c.program.ask("is_intact(p)") is True
            a.annotate(suspend=None)
            assert a.program.answer() is True
            a.until("running")


def test_release_without_oversubscription_is_refused(node, cluster, tmp_path):
    with (
        suspended_pod.room(node, cluster, tmp_path) as plain,
        plain.tenant("a") as tenant,
    ):
        before = judge.used_bytes(plain.node.machine)
        tenant.annotate(suspend=suspensions.RELEASE)
        waiting.wait_until(lambda: tenant.events)
        assert "since its devices are not oversubscribed" in tenant.events[0]
        assert judge.used_bytes(plain.node.machine) == before


def test_driver_without_checkpoints_offers_no_more_than_the_devices(node, cluster, tmp_path):
    conf = node.machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("cuda_version=13000", "cuda_version=12040"))
    with suspended_pod.room(node, cluster, tmp_path, OPTIONS) as old:
        old.node.kubelet.until(lambda: len(old.node.kubelet.healthy(names.VCORE_RESOURCE)) == 200)
        said = "--oversubscribe 2 has no effect: driver 999.1 (CUDA 12.4) cannot suspend processes"
        assert said in node.log.read_text()
        assert old.metrics("pyvgpu_device_reservable_ratio") == [1, 1]
