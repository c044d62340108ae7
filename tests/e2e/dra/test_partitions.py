"""MIG partitions of a GPU, which claims get in a real cluster."""

import signal

import agents
import claimed
import mig_node
import pytest
import rig
import webhooks

from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STAYS = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
SEES = f"ls /dev/nvidia-caps > /dev/termination-log; {STAYS}"
OPTIONS = ("--allocation-api", "dra", "--dynamic-mig", "all")
NOW = {"gracePeriodSeconds": 0}


@pytest.fixture(name="divided")
def fixture_divided(running, tmp_path_factory):
    """An agent on a node with a GPU in MIG mode without instances."""
    running.until_idle()
    running.stop()
    made = agents.Agent(tmp_path_factory.mktemp("own"), "h100:mig=none")
    mig_node.capabilities(made.root / "proc")
    try:
        yield claimed.become(made, *OPTIONS)
        made.until_idle()
    finally:
        made.stop()


def instances(agent):
    return sorted(one.profile for one in simulator.mig_state(agent.machine).instances)


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
