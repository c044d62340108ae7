"""Deleted, evicted and preempted pods are left to kubelet, even during a sidecar's stop."""

import json
import subprocess

import pytest
import rig
import sidecars
import vgpu

pytestmark = [pytest.mark.e2e, pytest.mark.row(10)]

LONG = 10 * rig.SECONDS


def stopping(space, parts, seconds=LONG, **spec):
    """Return a Job's pod whose sidecar ignores SIGTERM, within a grace period of *seconds*."""
    side = sidecars.sidecar(rig.IGNORES_TERM, EXITS_ZERO="true")
    main = rig.container("main", "sleep 1", **spec.pop("main", {}))
    sidecars.create_job(space, main, side, terminationGracePeriodSeconds=seconds, **spec)
    pod = space.until_any(
        "pods", f"{sidecars.JOB}=j", lambda current: rig.exit_code(current, "main") == 0
    )
    parts.wait_for_mark(rig.state(pod, "side")["containerID"])
    return space.read("pods", pod["metadata"]["name"])


def end_of(space, pod, begin):
    """Call *begin*; return all later states of *pod* until its deletion."""
    name, version = pod["metadata"]["name"], pod["metadata"]["resourceVersion"]
    query = {"fieldSelector": f"metadata.name={name}"}
    begin()
    seen = []
    for kind, thing in space.server.watch(space.path("pods"), query, version, rig.SECONDS):
        if kind == "BOOKMARK":
            continue
        seen.append(thing)
        if kind == "DELETED":
            return seen
    raise rig.NotSeenError(f"pod {name} stays: {json.dumps(seen[-1:])}")


def was_left_to_kubelet(pod, seen):
    """Return whether its containers stayed unchanged after the pod's deletion timestamp."""
    gone = [state for state in seen if state["metadata"].get("deletionTimestamp")]
    return gone and all(state["spec"]["containers"] == pod["spec"]["containers"] for state in gone)


def test_deletion_during_a_stop_keeps_its_grace_period(space, parts):
    pod = stopping(space, parts)
    path = space.path("pods", pod["metadata"]["name"])
    soon = {"gracePeriodSeconds": 1}
    space.delete_job("j")
    seen = end_of(space, pod, lambda: space.server.call("DELETE", path, body=soon))
    assert was_left_to_kubelet(pod, seen)


def test_deletion_during_a_swap_keeps_its_grace_period(space, parts):
    """kubelet would wait for the replaced container for the pod's whole grace period."""
    side = sidecars.sidecar(rig.IGNORES_TERM)
    main = rig.container("main", "sleep 1")
    sidecars.create_job(space, main, side, terminationGracePeriodSeconds=LONG)
    name = sidecars.has_record(space)["metadata"]["name"]
    space.until_event(name, "Killing", "definition changed")
    pod = space.read("pods", name)
    path, soon = space.path("pods", name), {"gracePeriodSeconds": 1}
    space.delete_job("j")
    seen = end_of(space, pod, lambda: space.server.call("DELETE", path, body=soon))
    assert was_left_to_kubelet(pod, seen)


def test_pod_can_be_evicted_during_a_stop(space, parts):
    pod = stopping(space, parts)
    name = pod["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name},
        "deleteOptions": {"gracePeriodSeconds": 1},
    }
    path = space.path("pods", name) + "/eviction"
    seen = end_of(space, pod, lambda: space.server.call("POST", path, body=eviction))
    assert was_left_to_kubelet(pod, seen)
    conditions = {
        condition["type"]: condition.get("reason")
        for condition in seen[-1]["status"]["conditions"]
    }
    assert conditions["DisruptionTarget"] == "EvictionByEvictionAPI"


@pytest.fixture
def classes():
    made = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "test-urgent"},
        "value": 1000,
    }
    text = json.dumps(made)
    subprocess.run(["kubectl", "apply", "-f-"], input=text, text=True, check=True)
    yield
    subprocess.run(["kubectl", "delete", "priorityclass", "test-urgent"], check=True)


def test_pod_can_be_preempted_during_a_stop(space, parts, classes):
    """It gets its full grace period: once kubelet has begun to end a pod, nothing shortens it."""
    whole = {"resources": {"limits": {vgpu.VCORE: "100"}}}
    with vgpu.on_the_node(vcore=100):
        pod = stopping(space, parts, seconds=8, main=whole)
        urgent = rig.pod("urgent", rig.container("main", "true", **whole))
        urgent["spec"]["priorityClassName"] = "test-urgent"
        name = pod["metadata"]["name"]

        def preempt():
            space.create("pods", urgent)
            space.until("pods", name, lambda current: current["metadata"].get("deletionTimestamp"))
            space.delete_job("j")

        seen = end_of(space, pod, preempt)
        assert was_left_to_kubelet(pod, seen)
        conditions = {
            condition["type"]: condition.get("reason")
            for condition in seen[-1]["status"]["conditions"]
        }
        assert conditions["DisruptionTarget"] == "PreemptionByScheduler"
        assert rig.phase(space.until("pods", "urgent", rig.has_ended)) == "Succeeded"
