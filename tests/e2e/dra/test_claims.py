"""Pods of a real cluster get shares of devices by DRA claims, without our scheduler extender."""

import contextlib
import signal

import agents
import claimed
import killing
import pytest
import rig
from agents import said
from claimed import container, request

from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

MIB = 1 << 20
STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
DRIVEN = "/client > /dev/termination-log 2>&1"


def sees(agent, space, name, mebibytes, container="main"):
    """Wait until the running container has logged its memory; check it."""
    agent.wait(lambda: "returned 1" in agents.logs(space, name, container))
    assert f"total {mebibytes * MIB}\n" in agents.logs(space, name, container)


def test_third_tenant_of_a_device_waits_until_there_is_room(space, agent):
    first = agent.machine.devices[0].uuid
    with claimed.device_class("first", uuid=first):
        for name, vcore, vmemory in (("a", 30, "4Gi"), ("b", 70, "8Gi"), ("c", 10, "1Gi")):
            # Priority frees nothing: kube-scheduler preempts no pod for a claim.
            more = {"priorityClassName": "system-cluster-critical"} if name == "c" else {}
            claimed.start(space, name, STAYS, request(vcore, vmemory, kind="first"), **more)
            if name != "c":
                space.until("pods", name, lambda pod: rig.runs(pod, "main"))
        sees(agent, space, "a", 4096)
        sees(agent, space, "b", 8192)
        space.until_event("c", "FailedScheduling", "cannot allocate all claims")
        assert all(rig.runs(space.read("pods", pod), "main") for pod in ("a", "b"))
        name = claimed.claim_of(space.read("pods", "a"))
        one = space.until("resourceclaims", name, lambda claim: claim["status"].get("devices"))
        (reported,) = one["status"]["devices"]
        (result,) = one["status"]["allocation"]["devices"]["results"]
        assert (reported["device"], reported["shareID"]) == (result["device"], result["shareID"])
        assert reported["conditions"][0]["status"] == "True"
        data = reported["data"]
        assert (data["uuid"], data["vcore"], data["vmemory"]) == (first, 30, "4Gi")
        space.server.call("DELETE", space.path("pods", "b"))
        space.until("pods", "c", lambda pod: rig.runs(pod, "main"))
        sees(agent, space, "c", 1024)
        (limits,) = agent.limits(data["grant"])
        assert (limits.uuid, limits.vcore) == (first, 30)
        with lost(agent, 0):  # kubelet and the scheduler learn of it
            agent.wait(lambda: claimed.published()[first] == ["pyvgpu.io/unhealthy"])
            space.until("pods", "c", lambda pod: health(pod) == {"Unhealthy"})
        agent.wait(lambda: claimed.published()[first] == [])
        space.until("pods", "c", lambda pod: health(pod) == {"Healthy"})


@contextlib.contextmanager
def lost(agent, index):
    """Simulate a lost device during the block."""
    simulator.set_faults(agent.machine, f"lost {index}")
    try:
        yield
    finally:
        simulator.set_faults(agent.machine)


def health(pod):
    """Return the device health that kubelet reports for a pod's container."""
    found = rig.state(pod, "main").get("allocatedResourcesStatus", ())
    return {each["health"] for status in found for each in status["resources"]}


def test_claim_is_one_quota_unless_containers_name_its_requests(space, agent):
    space.create("resourceclaimtemplates", claimed.template("one", request(30, "4Gi")))
    both = [container("x", DRIVEN), container("y", DRIVEN)]
    space.create("pods", claimed.pod("together", *both, of="one"))
    parts = [request(30, "4Gi", name="x"), request(20, "2Gi", name="y")]
    space.create("resourceclaimtemplates", claimed.template("two", *parts))
    own = [container(name, DRIVEN, part=name) for name in ("x", "y")]
    space.create("pods", claimed.pod("apart", *own, of="two"))
    mixed = [container("x", DRIVEN, part="x"), container("y", DRIVEN)]
    space.create("pods", claimed.pod("mixed", *mixed, of="two"))
    ended = space.until("pods", "apart", rig.has_ended)
    assert [said(ended, name)["total"] for name in ("x", "y")] == [
        str(4096 * MIB),
        str(2048 * MIB),
    ]
    ended = space.until("pods", "together", rig.has_ended)
    totals = [said(ended, name) for name in ("x", "y")]
    assert [total["total"] for total in totals] == [str(4096 * MIB)] * 2
    # Each allocates all it can get; together they get no more than the quota.
    space.until_event("mixed", "FailedPrepareDynamicResources", "either all containers name")


def test_two_devices_are_one_claim_with_constraints(space, agent):
    constraint = {"requests": ["vgpu"], "matchAttribute": "pyvgpu.io/model"}
    apart = {"requests": ["vgpu"], "distinctAttribute": "pyvgpu.io/uuid"}
    made = claimed.template("gang", request(40, "2Gi", count=2), constraints=[constraint, apart])
    space.create("resourceclaimtemplates", made)
    space.create("pods", claimed.pod("gang", container("main", STAYS), of="gang"))
    space.until("pods", "gang", lambda pod: rig.runs(pod, "main"))
    agent.wait(lambda: "returned" in agents.logs(space, "gang", "main"))
    (grant,) = agent.present()
    found = agent.limits(grant)
    assert {limit.uuid for limit in found} == {device.uuid for device in agent.machine.devices}
    assert {(limit.vcore, limit.vmemory) for limit in found} == {(40, 2048 * MIB)}
    space.server.call("DELETE", space.path("pods", "gang"))
    agent.until_idle()


def test_claim_without_amounts_is_a_whole_device_and_bad_configuration_is_refused(space, agent):
    claimed.start(space, "whole", DRIVEN, request())
    opaque = {"driver": "pyvgpu.io", "parameters": {"kind": "Garbage"}}
    bad = claimed.template("bad", request(10, "1Gi"), config=[{"opaque": opaque}])
    space.create("resourceclaimtemplates", bad)
    space.create("pods", claimed.pod("bad", container("main", DRIVEN), of="bad"))
    ended = space.until("pods", "whole", rig.has_ended)
    assert said(ended, "main")["total"] == str(agent.machine.devices[0].memory_bytes)
    space.until_event("bad", "FailedPrepareDynamicResources", "must be a VGPUConfig of")


def test_admin_access_takes_nothing_of_a_device(space, agent):
    claimed.merge(
        f"/api/v1/namespaces/{space.name}",
        {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    claimed.start(space, "tenant", STAYS, request(90, "8Gi"))
    space.until("pods", "tenant", lambda pod: rig.runs(pod, "main"))
    before = agent.present()
    monitor = request(1, "1Gi", name="monitor", allocationMode="All", adminAccess=True)
    claimed.start(space, "reader", "/nvml-client > /dev/termination-log 2>&1", monitor)
    ended = space.until("pods", "reader", rig.has_ended)
    # No quota: it sees the whole device.
    assert said(ended, "main")["total"] == str(agent.machine.devices[0].memory_bytes)
    assert agent.present() == before


def test_prepared_claims_survive_kills(space, agent, runtime):
    claimed.start(space, "p", STAYS, request(30, "4Gi"), restartPolicy="Always")
    pod = space.until("pods", "p", lambda current: rig.runs(current, "main"))
    agent.stop(signal.SIGKILL)
    agents.restart_kubelet()
    before = claimed.registrations(agent)
    agent.begin("--allocation-api", "dra")
    agent.wait(lambda: claimed.registrations(agent) > before)
    agent.wait(lambda: len(claimed.published()) == 2)  # kubelet has deleted the slice
    claimed.start(space, "q", STAYS, request(20, "3Gi"))
    space.until("pods", "q", lambda current: rig.runs(current, "main"))
    sees(agent, space, "q", 3072)
    killing.cluster("restart", "containerd")
    assert rig.state(space.read("pods", "p"), "main")["restartCount"] == 0
    claimed.start(space, "r", STAYS, request(10, "1Gi"))
    space.until("pods", "r", lambda current: rig.runs(current, "main"))
    (seen,) = runtime.newest(pod["metadata"]["uid"])
    agents.kill_sandbox(seen.pod)
    space.until(
        "pods",
        "p",
        lambda current: rig.runs(current, "main") and rig.state(current, "main")["restartCount"],
    )
    sees(agent, space, "p", 4096)
    now = {"gracePeriodSeconds": 0}
    space.server.call("DELETE", space.path("pods", "p"), body=now)
    for name in ("q", "r"):
        space.server.call("DELETE", space.path("pods", name))
    agent.until_idle()
