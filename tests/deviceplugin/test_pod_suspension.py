"""Pods are suspended and resumed by their annotation, also by agents that are killed meanwhile."""

import os
import re
import signal

import checkpoints
import driver_memory
import pytest
import suspended_pod
import waiting

from pyvgpu.allocator import suspensions

KEEP = suspensions.KEEP
GIB = 1 << 30


@pytest.fixture(name="room")
def fixture_room(node, cluster, tmp_path):
    with suspended_pod.room(node, cluster, tmp_path) as made:
        yield made


def test_suspended_pod_frees_the_device_and_continues_with_every_byte(room):
    with room.tenant("a") as tenant:
        before = driver_memory.used_bytes(room.node.machine)
        assert before > GIB
        tenant.annotate(suspend=KEEP)
        tenant.until("suspended")
        assert driver_memory.used_bytes(room.node.machine) == 0
        assert tenant.answer["requested"] == KEEP
        assert tenant.answer["hostBytes"] == before
        tenant.program.send("answer(is_intact(p))")
        waiting.wait_until(lambda: tenant.events)
        assert "device memory moved to host memory; the reservation is kept" in tenant.events[0]
        tenant.annotate(suspend=None)
        assert tenant.program.answer() is True
        tenant.until("running")
        assert driver_memory.used_bytes(room.node.machine) == before
        waiting.wait_until(lambda: "the device memory is on the device again" in tenant.events)
        assert room.quotas()[0].gated is False
        assert room.metrics("pyvgpu_container_moved_to_host_bytes_total") == [before]
        assert room.metrics("pyvgpu_container_moved_to_device_bytes_total") == [before]


def test_all_containers_of_a_pod_are_suspended_or_none(room):
    with room.tenant("a", ("x", "y")) as tenant:
        before = driver_memory.used_bytes(room.node.machine)
        os.kill(tenant.programs["y"].pid, signal.SIGSTOP)
        tenant.annotate(suspend=KEEP)
        waiting.wait_until(lambda: tenant.answer.get("message"))
        assert tenant.answer["message"].startswith("container y: process ")
        assert "it is stopped; `kill -CONT" in tenant.answer["message"]
        assert tenant.answer["state"] == "running"
        assert driver_memory.used_bytes(room.node.machine) == before
        assert tenant.programs["x"].ask("is_intact(p)") is True
        os.kill(tenant.programs["y"].pid, signal.SIGCONT)
        tenant.annotate(suspend=None)
        waiting.wait_until(lambda: not tenant.answer)  # the agent has seen that change
        tenant.annotate(suspend=KEEP)
        tenant.until("suspended")
        assert driver_memory.used_bytes(room.node.machine) == 0
        tenant.annotate(suspend=None)
        for program in tenant.programs.values():
            assert program.ask("is_intact(p)") is True


def test_invalid_value_is_refused_with_the_valid_ones(room):
    with room.tenant("a") as tenant:
        tenant.annotate(suspend="true")
        waiting.wait_until(lambda: tenant.events)
        assert tenant.events == [
            "pyvgpu.io/suspend 'true': must be keep, release or never, such as keep, or absent"
        ]
        assert tenant.program.ask("is_intact(p)") is True


def test_pods_beyond_the_host_memory_of_the_node_are_not_suspended(node, cluster, tmp_path):
    limit = ("--suspend-host-memory", "1536MiB")  # each holds more than 1 GiB
    with (
        suspended_pod.room(node, cluster, tmp_path, limit) as room,
        room.tenant("a") as a,
        room.tenant("b") as b,
    ):
        _, text = room.node.ask("/metrics")
        (found,) = re.findall(r"^pyvgpu_suspended_memory_limit_bytes (\S+)$", text, re.MULTILINE)
        assert float(found) == 1.5 * GIB
        a.annotate(suspend=KEEP)
        a.until("suspended")
        b.annotate(suspend=KEEP)
        waiting.wait_until(lambda: b.answer.get("message"))
        assert "and all of them may have 1.5GiB on this node" in b.answer["message"]
        assert b.program.ask("is_intact(p)") is True
        a.annotate(suspend=None)
        a.until("running")
        b.annotate(suspend=None)
        waiting.wait_until(lambda: not b.answer)
        b.annotate(suspend=KEEP)
        b.until("suspended")


def test_resume_without_room_stays_suspended_and_says_why(room):
    with room.tenant("a") as tenant:
        tenant.annotate(suspend=KEEP)
        tenant.until("suspended")
        with checkpoints.target(room.node.machine) as bypassing:
            bypassing.send("context(); q = [alloc(1 << 28) for _ in range(60)]; answer(1)")
            assert bypassing.answer() == 1
            tenant.annotate(suspend=None)
            waiting.wait_until(lambda: tenant.answer.get("message"))
            assert "is free: processes without a quota hold the rest" in tenant.answer["message"]
            assert tenant.answer["state"] == "suspended"
            waiting.wait_until(lambda: len(tenant.events) == 2)
        tenant.annotate(suspend=KEEP)  # and back: the next attempt is not delayed
        waiting.wait_until(lambda: not tenant.answer["message"])
        tenant.annotate(suspend=None)
        assert tenant.program.ask("is_intact(p)") is True


@pytest.mark.slow
def test_pods_of_a_device_are_restored_one_after_the_other(node, cluster, tmp_path):
    """Two restores at once could find the same room, and one program would be lost."""
    conf = node.machine.folder / "machine.conf"
    conf.write_text(re.sub(r"restore_percent=\d+", "restore_percent=1", conf.read_text()))
    with (
        suspended_pod.room(node, cluster, tmp_path) as slow,
        slow.tenant("a") as a,
        slow.tenant("b") as b,
    ):
        everything = driver_memory.used_bytes(node.machine)
        for tenant in (a, b):
            tenant.annotate(suspend=KEEP)
            tenant.until("suspended")
        overlaps = []

        def have_both_been_resumed():
            used = driver_memory.used_bytes(
                node.machine
            )  # a restore takes all of it at its beginning
            suspended = [mark.suspended for mark in slow.quotas()]
            overlaps.append(used == everything and all(suspended))
            return not any(suspended)

        for tenant in (a, b):
            tenant.annotate(suspend=None)
        waiting.wait_until(have_both_been_resumed)
        assert not any(overlaps)
        for tenant in (a, b):
            assert tenant.program.ask("is_intact(p)") is True


def test_pod_that_is_deleted_is_resumed_to_handle_its_signal(room):
    with room.tenant("a") as tenant:
        tenant.annotate(suspend=KEEP)
        tenant.until("suspended")
        path = room.cluster.path_of(tenant.pod)
        thing = room.cluster.api.read(path)
        thing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        room.cluster.api.put(path, thing)
        assert tenant.program.ask("is_intact(p)") is True
        waiting.wait_until(lambda: not tenant.answer)


def test_killed_container_of_a_suspended_pod_starts_again_and_waits(room):
    with room.tenant("a") as tenant:
        suspend_and_kill(tenant)
        edits = room.node.specification(room.node.kubelet.start_container(tenant.pod, "main"))
        process = suspended_pod.granted.start(
            edits, room.node.folder / "again", suspended_pod.SOURCE
        )
        try:
            again = checkpoints.Lines(process)
            again.send(suspended_pod.HOLDING)  # cuInit waits
            assert driver_memory.used_bytes(room.node.machine) == 0
            tenant.annotate(suspend=None)
            assert again.answer() is True
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("withdrawn", [False, True], ids=["still wanted", "withdrawn meanwhile"])
@pytest.mark.parametrize("stage", ["gated", "checkpointing", "suspended"])
def test_agent_killed_while_it_suspends(room, stage, withdrawn):
    with room.tenant("a") as tenant:
        tenant.annotate(suspend=KEEP)
        reached = {
            "gated": lambda: room.quotas()[0].gated,
            "checkpointing": lambda: driver_memory.used_bytes(room.node.machine) == 0,
            "suspended": lambda: room.quotas()[0].suspended,
        }[stage]
        waiting.wait_until(reached)
        room.kill()
        if withdrawn:
            tenant.annotate(suspend=None)
        room.start()
        tenant.program.send("answer(is_intact(p))")
        if not withdrawn:
            tenant.until("suspended")
            assert driver_memory.used_bytes(room.node.machine) == 0
            tenant.annotate(suspend=None)
        assert tenant.program.answer() is True
        waiting.wait_until(lambda: not room.quotas()[0].gated)
        tenant.until("running")


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["still unwanted", "wanted again"])
@pytest.mark.parametrize("stage", ["restored", "running"])
def test_agent_killed_while_it_resumes(room, stage, again):
    with room.tenant("a") as tenant:
        tenant.annotate(suspend=KEEP)
        tenant.until("suspended")
        tenant.annotate(suspend=None)
        reached = {
            "restored": lambda: driver_memory.used_bytes(room.node.machine) > 0,
            "running": lambda: not room.quotas()[0].gated,
        }[stage]
        waiting.wait_until(reached)
        room.kill()
        if again:
            tenant.annotate(suspend=KEEP)
        room.start()
        if again:
            tenant.until("suspended")
            waiting.wait_until(lambda: driver_memory.used_bytes(room.node.machine) == 0)
            tenant.annotate(suspend=None)
        assert tenant.program.ask("is_intact(p)") is True
        tenant.until("running")


def suspend_and_kill(tenant):
    """Suspend the pod, then kill its program."""
    tenant.annotate(suspend=KEEP)
    tenant.until("suspended")
    tenant.program.process.kill()
    tenant.program.process.wait()


def test_after_a_reboot_the_pod_is_suspended_before_its_program_starts(room):
    """Quotas are on tmpfs, so they are gone; the annotation and the grants are not."""
    with room.tenant("a") as tenant:
        suspend_and_kill(tenant)
        room.kill()
        waiting.until_removed(room.node.files)
        room.start()
        waiting.wait_until(lambda: [mark.suspended for mark in room.quotas()] == [True])
        tenant.annotate(suspend=None)
        waiting.wait_until(lambda: not room.quotas()[0].gated)


def test_pod_deleted_while_suspended_leaves_nothing(room):
    with room.tenant("a") as tenant:
        suspend_and_kill(tenant)
        room.cluster.api.delete(room.cluster.path_of(tenant.pod))
        room.node.kubelet.remove(tenant.pod)
        waiting.wait_until(lambda: not room.quotas())
