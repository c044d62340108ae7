"""Pods whose reservations exceed a device: idle ones are suspended, and no neighbour fails."""

import checkpoints
import driver_memory
import pytest
import suspended_pod
import waiting
from fake_kubelet import StartError
from node_process import UNIT

from pyvgpu import names
from pyvgpu.allocator import suspensions
from pyvgpu.simulation import simulator

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


def test_pod_that_must_not_be_suspended_any_more_comes_back_and_stays(room):
    with (
        room.tenant("a", share=SHARE) as a,
        room.tenant("b", share=SHARE) as b,
        room.tenant("c", share=SHARE) as c,
    ):
        (moved,) = [x for x in (a, b) if x.answer.get("state") == "suspended"]
        moved.annotate(suspend=suspensions.NEVER)
        moved.until("running")  # although its program has not called CUDA since
        c.until("suspended")
        c.program.send("answer(is_intact(p))")
        waiting.wait_until(lambda: waiting_pods(room) == 1)
        assert moved.program.ask("is_intact(p)") is True
        moved.annotate(suspend=None)
        assert c.program.answer() is True


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
    waiting.until_removed(room.node.files)
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


def test_reservation_that_was_kept_may_be_released_later(room):
    with room.tenant("a", share=SHARE) as a, room.tenant("b", share=SHARE) as b:
        b.program.send(WORK)
        a.annotate(suspend=suspensions.KEEP)
        a.until("suspended")
        assert [mark.kept for mark in room.quotas() if mark.suspended] == [True]
        a.annotate(suspend=suspensions.RELEASE)
        with room.tenant("c", share=SHARE) as c:
            assert c.program.ask("is_intact(p)") is True
            assert a.answer["requested"] == suspensions.RELEASE
        a.annotate(suspend=None)
        assert a.program.ask("is_intact(p)") is True


def test_pod_created_as_suspended_takes_no_room_from_others(room):
    with room.tenant("a", share=SHARE) as a, room.tenant("b", share=SHARE) as b:
        for tenant in (a, b):
            tenant.program.send(WORK)
        late = room.place("late", share=SHARE, **{names.SUSPEND_ANNOTATION: suspensions.KEEP})
        assert suspended_pod.NO_ROOM in refusal_of(room, late)
        waiting.wait_until(lambda: room.cluster.notes(late).get(names.SUSPENSION_ANNOTATION))
        assert [mark.gated for mark in room.quotas()] == [False] * 3
        for tenant in (a, b):
            tenant.program.send("go.set()")
        waiting.wait_until(lambda: not refusal_of(room, late))
        waiting.wait_until(lambda: sum(mark.kept for mark in room.quotas()) == 1)
        for tenant in (a, b):
            assert tenant.program.ask("p > 0") is True


def test_ratio_lowered_while_pods_are_suspended(room):
    with (
        room.tenant("a", share=SHARE) as a,
        room.tenant("b", share=SHARE) as b,
        room.tenant("c", share=SHARE) as c,
    ):
        (moved,) = [x for x in (a, b) if x.answer.get("state") == "suspended"]
        others = [x for x in (a, b, c) if x is not moved]
        for tenant in others:
            tenant.program.send(WORK)
        late = room.place("late", share=SHARE)
        assert suspended_pod.NO_ROOM in refusal_of(room, late)
        room.kill()
        room.options = ()
        room.start()
        kubelet = room.node.kubelet
        kubelet.until(lambda: len(kubelet.healthy(names.VCORE_RESOURCE)) == 200)
        waiting.wait_until(lambda: suspended_pod.NO_ROOM in refusal_of(room, late))
        assert [mark.suspended for mark in room.quotas()].count(True) == 1
        for tenant in others:
            tenant.program.send("go.set()")
        for tenant in (moved, *others):
            assert tenant.program.ask("is_intact(p)") is True


CHILD = f"""
import subprocess
child = subprocess.Popen(
    [sys.executable, "-c", {suspended_pod.SOURCE!r}],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def ask_child(line):
    child.stdin.write(line + "\\n"); child.stdin.flush()
    return json.loads(child.stdout.readline())
answer([child.stdout.readline() != "", ask_child({suspended_pod.HOLDING!r})])
"""


@pytest.mark.slow
def test_pod_of_which_one_process_stays_suspended_goes_back_as_a_whole(room):
    with (
        room.tenant("a", share=SHARE) as a,
        room.tenant("b", share=SHARE) as b,
        checkpoints.caller(room.node.machine) as driver,
    ):
        a.program.send(f"exec({CHILD!r})")
        assert a.program.answer() == [True, True]
        pids = [a.program.pid, a.program.ask("child.pid")]
        b.program.send(WORK)
        with room.tenant("c", share=SHARE) as c:
            a.until("suspended")
            simulator.set_faults(room.node.machine, "call cuCheckpointProcessRestore 2 600")
            a.program.send("answer([is_intact(p), ask_child('answer(is_intact(p))')])")
            waiting.wait_until(lambda: any("returned error 600" in x for x in a.events))
            waiting.wait_until(
                lambda: [driver.ask(f"state({pid})") for pid in pids] == ["state 2"] * 2
            )
            simulator.set_faults(room.node.machine)
            assert [x.program.process.poll() for x in (a, b, c)] == [None] * 3
        assert a.program.answer() == [True, True]
        a.program.send("child.kill()")


def test_release_without_oversubscription_is_refused(node, cluster, tmp_path):
    with (
        suspended_pod.room(node, cluster, tmp_path) as plain,
        plain.tenant("a") as tenant,
    ):
        before = driver_memory.used_bytes(plain.node.machine)
        tenant.annotate(suspend=suspensions.RELEASE)
        waiting.wait_until(lambda: tenant.events)
        assert "since its devices are not oversubscribed" in tenant.events[0]
        assert driver_memory.used_bytes(plain.node.machine) == before


def test_driver_without_checkpoints_offers_no_more_than_the_devices(node, cluster, tmp_path):
    conf = node.machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("cuda_version=13000", "cuda_version=12040"))
    with suspended_pod.room(node, cluster, tmp_path, OPTIONS) as old:
        old.node.kubelet.until(lambda: len(old.node.kubelet.healthy(names.VCORE_RESOURCE)) == 200)
        said = "--oversubscribe 2 has no effect: driver 999.1 (CUDA 12.4) cannot suspend processes"
        assert said in node.log.read_text()
        assert old.metrics("pyvgpu_device_reservable_ratio") == [1, 1]
