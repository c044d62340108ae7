"""A training Job with a log shipper: its quota is free for the next pod when its work is done."""

import time

import agents
import pytest
import rig
import sidecars

pytestmark = pytest.mark.e2e

RANKS = (0, 1)
# Each rank signals its presence to the other, then reports its memory and the refusal beyond it.
TRAIN = """
echo > /meet/$JOB_COMPLETION_INDEX
until [ -e /meet/0 ] && [ -e /meet/1 ]; do sleep 0.1; done
until [ -e /meet/go ]; do sleep 0.1; done
/client > /dev/termination-log 2>&1
"""


def create_training(space, meeting):
    rank = agents.container("rank", 60, 16, TRAIN)
    rank["volumeMounts"] = [{"name": "meet", "mountPath": "/meet"}]
    sidecars.create_job(
        space,
        rank,
        sidecars.sidecar(rig.IGNORES_TERM, name="shipper"),
        name="training",
        volumes=[{"name": "meet", "hostPath": {"path": str(meeting)}}],
        job={"completionMode": "Indexed", "completions": len(RANKS), "parallelism": len(RANKS)},
    )


def is_running(space, rank):
    labels = f"{sidecars.JOB}=training,batch.kubernetes.io/job-completion-index={rank}"
    return space.until_any("pods", labels, lambda pod: rig.runs(pod, "rank"))


def is_refused(pod):
    """Return whether the scheduler has found no node for a pod."""
    found = pod["status"].get("conditions") or ()
    return any(
        (condition["type"], condition["status"]) == ("PodScheduled", "False")
        for condition in found
    )


def test_quota_of_a_finished_job_is_free_for_the_next_pod(space, idle, parts, tmp_path):
    create_training(space, tmp_path)
    for rank in RANKS:
        is_running(space, rank)
    before = idle.present()
    assert len(before) == len(RANKS)
    space.create("pods", rig.pod("next", agents.container("a", 100, 0)))  # a whole device
    space.until("pods", "next", is_refused)
    begun = space.read("pods", "next")["metadata"]["resourceVersion"]
    (tmp_path / "go").touch()
    at = {}
    for _, pod in space.server.watch(space.path("pods"), {}, begun, rig.SECONDS):
        if pod["metadata"].get("name") != "next":
            if rig.has_ended(pod):
                at.setdefault("free", time.monotonic())
            continue
        if pod["spec"].get("nodeName"):
            at.setdefault("given", time.monotonic())
        if rig.has_ended(pod):
            break
    assert rig.phase(pod) == "Succeeded", pod["status"]
    assert [rig.phase(member) for member in space.pods_of("training")] == [
        "Succeeded",
        "Succeeded",
    ]
    for member in space.pods_of("training"):
        assert agents.said(member, "rank")["refused"] == "2"
    idle.wait(lambda: not before & idle.present())
    assert list(at) == ["free", "given"]
    seconds = at["given"] - at["free"]
    print(f"the next pod was given a device {seconds:.2f} s after the work's pod had ended")
