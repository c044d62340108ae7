"""Scheduling that involves several pods: gangs, preemption, freed devices, ResourceQuotas."""

import subprocess
import time

import extenders
import pytest

from pyvgpu import names
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def classes():
    """Two PriorityClasses of these tests."""
    made = {"pyvgpu-test-low": 1, "pyvgpu-test-high": 1000}
    api = extenders.admin_api()
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in made.items():
        api.call("POST", path, body={"metadata": {"name": name}, "value": value})
    yield
    for name in made:
        api.call("DELETE", f"{path}/{name}")


def waits(pod):
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in pod["status"].get("conditions", ())
    )


def is_refused_with_its_gang_of_4(pod):
    return any(
        "not for its whole gang of 4" in condition.get("message", "")
        for condition in pod["status"].get("conditions", ())
    )


def is_bound(pod):
    return pod["spec"].get("nodeName")


def only(name):
    return {"nodeSelector": {"kubernetes.io/hostname": name}}


def test_pod_of_higher_priority_preempts_where_no_device_has_room(space, extender, classes):
    low, high = ({"priorityClassName": f"pyvgpu-test-{level}"} for level in ("low", "high"))
    with extenders.fake_nodes("alone", gibibytes=16):
        for name in ("low-0", "low-1"):
            space.create("pods", extenders.pod(name, 60, 4, **low, **only("alone")))
            space.until("pods", name, is_bound)
        # 80 of 200 vcore are free, but no device has 50.
        space.create("pods", extenders.pod("high", 50, 4, **high, **only("alone")))
        space.until_event_of("VGPUPreempted", f"{space.name}/high")
        # The node has no kubelet to end the victim: it stays terminating.
        victims = [pod for pod in space.pods() if pod["metadata"].get("deletionTimestamp")]
        assert len(victims) == 1
        extenders.bury(space, victims[0]["metadata"]["name"])
        space.until("pods", "high", is_bound)
        left = {pod["metadata"]["name"] for pod in space.pods()}
        assert len(left & {"low-0", "low-1"}) == 1


def test_scheduler_preempts_victims_where_node_totals_are_short(space, extender, classes):
    low, high = ({"priorityClassName": f"pyvgpu-test-{level}"} for level in ("low", "high"))
    with extenders.fake_nodes("short", gibibytes=16):
        for name, vcore in (("a", 60), ("b", 60), ("c", 40), ("d", 40)):
            space.create("pods", extenders.pod(name, vcore, 4, **low, **only("short")))
            space.until("pods", name, is_bound)
        space.create("pods", extenders.pod("high", 100, 4, **high, **only("short")))
        gone = set()
        while not is_bound(space.read("pods", "high")):
            for pod in space.pods():
                if pod["metadata"].get("deletionTimestamp"):
                    gone.add(pod["metadata"]["name"])
                    extenders.bury(space, pod["metadata"]["name"])
            time.sleep(0.2)
        # kube-scheduler proposes random victims; they include those of one device, not all four.
        assert {"a", "c"} <= gone or {"b", "d"} <= gone
        assert len(gone) < 4
        extenders.assert_not_overcommitted(space)


def gang(name, size):
    return {
        names.GANG_ANNOTATION: name,
        names.GANG_SIZE_ANNOTATION: str(size),
        names.GANG_TIMEOUT_ANNOTATION: "60",
    }


def test_two_competing_gangs_are_bound_one_after_the_other(space, extender):
    with extenders.fake_nodes("gang-0", "gang-1", "gang-2"):  # 6 devices
        pods = [
            extenders.pod(f"{name}-{n}", 100, 16, gang(name, 4))
            for n in range(4)
            for name in ("red", "blue")  # alternating
        ]
        extenders.create_all(space, pods)
        extenders.until_bound(space, 4)
        first = {pod_name.partition("-")[0] for pod_name in extenders.bound(space)}
        assert len(first) == 1
        (winner,) = first
        (other,) = {"red", "blue"} - first
        for n in range(4):  # no pod of the other gang gets the two free devices
            space.until("pods", f"{other}-{n}", is_refused_with_its_gang_of_4)
        assert len(extenders.bound(space)) == 4
        for n in range(4):
            extenders.bury(space, f"{winner}-{n}")
        extenders.until_bound(space, 4)
        assert {pod_name.partition("-")[0] for pod_name in extenders.bound(space)} == {other}


def test_waiting_pods_are_retried_soon_after_room_was_freed(space, extender):
    with extenders.fake_nodes("wakes"):
        for name in ("one", "two"):
            space.create("pods", extenders.pod(name, 100, 16, **only("wakes")))
            space.until("pods", name, is_bound)
        extenders.create_all(space, [extenders.pod(f"w-{n}", 30, 2) for n in range(6)])
        for n in range(6):
            space.until("pods", f"w-{n}", waits)
        time.sleep(12)  # longer than kube-scheduler's backoff of a refused pod
        extenders.bury(space, "one")
        extenders.until_bound(space, 1 + 3)  # kube-scheduler alone would retry after 5 min
        extenders.assert_not_overcommitted(space)


def test_resource_quotas_and_kubectl_describe_count_allocations(space, extender):
    hard = {f"requests.{names.VCORE_RESOURCE}": "100"}
    space.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    space.until("resourcequotas", "q", lambda quota: "hard" in quota.get("status", {}))
    with extenders.fake_nodes("counted"):
        space.create("pods", extenders.pod("one", 60, 4))
        space.until("pods", "one", is_bound)
        with pytest.raises(apiserver.ServerError, match="exceeded quota: q, requested.*=60, used"):
            space.create("pods", extenders.pod("two", 60, 4))
        space.create("pods", extenders.pod("two", 40, 4))
        space.until("pods", "two", is_bound)
        command = ["kubectl", "describe", "node", "counted"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        allocated = dict(line.split()[:2] for line in said.splitlines() if "pyvgpu.io/v" in line)
        assert allocated[names.VCORE_RESOURCE] == "100"


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_placement_annotation_selects_binpack_or_spread(space, extender, policy):
    with extenders.fake_nodes("one", "two", "three"):
        noted = {names.PLACEMENT_ANNOTATION: policy}
        for n in range(3):
            space.create("pods", extenders.pod(f"p-{n}", 40, 4, noted))
            space.until("pods", f"p-{n}", is_bound)
        nodes = set(extenders.bound(space).values())
        assert len(nodes) == (1 if policy == "binpack" else 3)
