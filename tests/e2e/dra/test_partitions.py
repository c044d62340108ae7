"""MIG partitions of a GPU, which claims get in a real cluster."""

import signal
import subprocess

import agents
import claimed
import mig_agents
import mig_node
import pytest
import rig
import runner
import webhooks
from mig_agents import profiles as instances

from pyvgpu import names
from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STAYS = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
SEES = f"ls /dev/nvidia-caps > /dev/termination-log; {STAYS}"
OPTIONS = ("--allocation-api", "dra", "--dynamic-mig", "all")
NOW = {"gracePeriodSeconds": 0}


@pytest.fixture(name="divided")
def fixture_divided(running, tmp_path_factory):
    """An agent on a node with a GPU in MIG mode without instances."""
    with mig_agents.in_place_of(running, tmp_path_factory.mktemp("own"), "h100:mig=none") as made:
        claimed.become(made, *OPTIONS)
        made.wait(lambda: claimed.registrations(made))  # else kubelet retries after a minute
        yield made


def profile(name):
    expression = f'device.attributes["pyvgpu.io"].migProfile == "{name}"'
    return {"selectors": [{"cel": {"expression": expression}}]}


def start(space, name, request, script=SEES):
    claimed.start(space, name, script, request)


def until_runs(space, name):
    return space.until("pods", name, lambda now: rig.runs(now, "main"))


def test_claims_get_partitions_that_fit_together(space, divided):
    with webhooks.installed("dra/", setting="dra.enabled=true"):
        start(space, "a", claimed.request(kind="vgpu-mig", **profile("3g.40gb")))
        until_runs(space, "a")
        (first,) = simulator.mig_state(divided.machine).instances
        assert first.profile == "3g.40gb"
        # Without a profile: the smallest that has as much.
        start(space, "b", claimed.request(vmemory="15Gi", kind="vgpu-mig"))
        until_runs(space, "b")
        assert instances(divided) == ["1g.20gb", "3g.40gb"]
        start(space, "c", claimed.request(kind="vgpu-mig", **profile("4g.40gb")))
        start(space, "d", claimed.request(10, "4Gi", kind="vgpu"))
        for name in "cd":
            space.until_event(name, "FailedScheduling", "cannot allocate all claims")

        divided.stop(signal.SIGKILL)
        for name in "ab":
            space.server.call("DELETE", space.path("pods", name), body=NOW)
        divided.begin(*OPTIONS)
        until_runs(space, "c")
        assert rig.phase(space.read("pods", "d")) == "Pending", "no class but vgpu-mig has them"
        divided.wait(lambda: instances(divided) == ["4g.40gb"])

        name = claimed.claim_of(space.read("pods", "c"))
        one = space.until("resourceclaims", name, lambda claim: claim["status"].get("devices"))
        (reported,) = one["status"]["devices"]
        (result,) = one["status"]["allocation"]["devices"]["results"]
        assert (reported["pool"], reported["device"]) == (result["pool"], result["device"])
        assert reported["data"]["mig"] == "4g.40gb@0"

        sees = "ls /dev/nvidia-caps > /dev/termination-log"
        start(space, "e", claimed.request(kind="vgpu-mig", **profile("1g.10gb")), sees)
        ended = space.until("pods", "e", rig.has_ended)
        (status,) = ended["status"]["containerStatuses"]
        seen = set(status["state"]["terminated"]["message"].split())
        assert seen in [
            {f"nvidia-cap{minor}" for minor in mig_node.minors(number)} for number in range(15)
        ], "those of one instance"
        for name in "cde":
            space.server.call("DELETE", space.path("pods", name), body=NOW)
        divided.wait(lambda: not instances(divided))


@pytest.fixture(name="webhook")
def fixture_webhook(space, tmp_path):
    """The chart's DRA and webhook objects, and a webhook that writes claims in the namespace."""
    made = webhooks.Webhook(tmp_path)
    with webhooks.installed("dra/", "webhook/", setting="dra.enabled=true"):
        made.start(*made.options, f"--claims={space.name}")
        try:
            yield made
        finally:
            made.stop()


def limited(name, annotations, vcore=10):
    """Return a pod with limits; without claims, nothing on this node has these resources."""
    made = rig.pod(name, agents.container("main", vcore, 8, SEES), **claimed.TOKEN)
    made["metadata"]["annotations"] = annotations
    return made


@pytest.mark.usefixtures("webhook")
def test_annotations_become_claims_of_partitions(space, divided):
    space.create("pods", limited("a", {names.MIG_ANNOTATION: "3g.40gb"}))
    space.create("pods", limited("b", {names.ISOLATION_ANNOTATION: "hardware"}))
    for name in "ab":
        # The claim was created just before: a kubelet that has not seen it retries in 1 to 2 min.
        space.until("pods", name, lambda now: rig.runs(now, "main"), 300)
    assert instances(divided) == ["1g.10gb", "3g.40gb"]

    why = webhooks.refused(space.create, "pods", limited("c", {names.MIG_ANNOTATION: "5g.50gb"}))
    assert "no GPU serves it: one has no MIG profile 5g.50gb; it has 1g.10gb (12 vcore" in why

    space.create("pods", limited("d", {names.MIG_ANNOTATION: "4g.40gb"}))
    space.until_event("d", "FailedScheduling", "cannot allocate all claims")
    command = [runner.PYVGPU, "explain", "d", "-n", space.name]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{space.name}/d asks for a MIG instance 4g.40gb with 10 vcore and 2GiB" in said
    assert "has no place for 4g.40gb beside 1g.10gb@" in said
    assert f"{space.name}/a 3g.40gb@" in said
    assert f"GPUs for MIG instances: {agents.NODE} gpu" in said

    for name in "abd":
        space.server.call("DELETE", space.path("pods", name), body=NOW)
    divided.wait(lambda: not instances(divided))
