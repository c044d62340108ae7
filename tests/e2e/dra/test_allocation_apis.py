"""Device plugin and DRA on one node: each device is offered through one of the two APIs."""

import agents
import claimed
import pytest
import rig
from claimed import request

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"


def test_overfilled_device_plugin_and_dra_refuse_no_bound_pod(space, running):
    first, second = (device.uuid for device in running.machine.devices)
    agent = claimed.become(
        running, "--allocation-api", f"{second}=dra", "--allocation-switch-delay", "1"
    )
    agent.wait(lambda: set(claimed.published()) == {second})
    agent.wait(lambda: agent.allocatable().get("pyvgpu.io/vcore") == "100")
    space.create("resourceclaimtemplates", claimed.template("share", request(40, "2Gi")))
    for number in range(4):
        used = claimed.container("main", STAYS)
        space.create("pods", claimed.pod(f"claims-{number}", used, of="share"))
        counted = agents.container("main", 40, 8, STAYS)
        space.create("pods", rig.pod(f"counted-{number}", counted))

    def running_pods():
        return sorted(
            pod["metadata"]["name"].partition("-")[0]
            for pod in space.pods()
            if rig.runs(pod, "main")
        )

    agent.wait(lambda: running_pods() == ["claims"] * 2 + ["counted"] * 2)
    waiting = [pod for pod in space.pods() if not rig.runs(pod, "main")]
    assert [rig.phase(pod) for pod in waiting] == ["Pending"] * 4
    assert not any(pod["spec"].get("nodeName") for pod in waiting)
    held = {}
    for grant in agent.present():
        (limits,) = agent.limits(grant)
        held.setdefault(limits.uuid, []).append(limits.vcore)
    assert held == {first: [40, 40], second: [40, 40]}
    # The first device moves to claims, too: its pods keep running, and it moves when they end.
    agent.stop()
    agent.begin("--allocation-api", "dra", "--allocation-switch-delay", "1")
    agent.wait(lambda: agent.allocatable().get("pyvgpu.io/vcore") in ("80", "0"))
    assert set(claimed.published()) == {second}
    counted = [
        pod["metadata"]["name"] for pod in space.pods() if "counted" in pod["metadata"]["name"]
    ]
    for name in counted:
        space.server.call("DELETE", space.path("pods", name))
    agent.wait(lambda: set(claimed.published()) == {first, second})
    agent.wait(lambda: running_pods() == ["claims"] * 4)
