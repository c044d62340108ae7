"""MIG devices that the administrator made, shared by pods of a real cluster."""

import agents
import mig_agents
import mig_node
import pytest
import rig
from agents import UNIT, container

from pyvgpu import names
from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STAYS = "trap 'exit 0' TERM; while true; do sleep 0.1; done"


@pytest.fixture(name="divided")
def fixture_divided(running, tmp_path_factory):
    """An agent on a node with a GPU in MIG mode that has two instances."""
    folder = tmp_path_factory.mktemp("own")
    with mig_agents.in_place_of(running, folder, "h100:mig=3g.40gb+2g.20gb") as made:
        before = made.registrations()
        made.begin()
        made.wait(lambda: made.registrations() == before + 2)
        made.wait(lambda: made.allocatable().get(names.VCORE_RESOURCE) == "200")
        yield made


def pod(name, script, vcore):
    made = rig.pod(name, container("a", vcore, 8, script))
    made["metadata"]["annotations"] = {names.DEVICE_MODELS_ANNOTATION: "MIG 2g.20gb"}
    return made


def test_pods_have_quotas_in_a_mig_device_and_only_its_capabilities(space, divided):
    instances = simulator.mig_state(divided.machine).instances
    (own,) = [one for one in instances if one.profile == "2g.20gb"]
    space.create("pods", pod("stays", STAYS, 60))
    space.until("pods", "stays", lambda now: rig.runs(now, "a"))
    space.create("pods", pod("p", "", 40))
    seen = agents.said(space.until("pods", "p", rig.has_ended), "a")
    assert int(seen["total"]) == 8 * UNIT
    space.server.call("DELETE", space.path("pods", "p"))
    divided.wait(lambda: len(divided.present()) == 1)
    space.create("pods", pod("q", "ls /dev/nvidia-caps > /dev/termination-log", 40))
    ended = space.until("pods", "q", rig.has_ended)
    (status,) = ended["status"]["containerStatuses"]
    assert set(status["state"]["terminated"]["message"].split()) == {
        f"nvidia-cap{minor}" for minor in mig_node.minors(own.gpu_instance)
    }
    held = {limit.uuid for grant in divided.present() for limit in divided.limits(grant)}
    assert held == {own.uuid}
    assert len(simulator.mig_state(divided.machine).instances) == 2, "the agent changes none"
    for name in ("stays", "q"):
        space.server.call("DELETE", space.path("pods", name), body={"gracePeriodSeconds": 0})
