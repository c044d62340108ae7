"""What containers of every kind see: their own quota, or no driver at all."""

import agents
import pytest
import rig
from agents import UNIT, container, said

pytestmark = pytest.mark.e2e

RESTRICTED = {  # by the Pod Security Standard of that name, and more
    "runAsNonRoot": True,
    "runAsUser": 1_000_650_000,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def run(space, *containers, **spec):
    """Run a pod to its end, whatever that is."""
    space.create("pods", rig.pod("p", *containers, **spec))
    return space.until("pods", "p", rig.has_ended)


@pytest.mark.parametrize(
    ("script", "more"),
    [
        pytest.param("/client", {"securityContext": RESTRICTED}, id="restricted"),
        pytest.param("env -i /client", {}, id="no environment"),
        pytest.param(
            "/client",
            {"env": [{"name": "LD_LIBRARY_PATH", "value": "/opt"}]},
            id="a path of its own",
        ),
        pytest.param(
            "/client",
            {"env": [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/pyvgpu/origin"}]},
            id="the originals",
        ),
    ],
)
def test_a_container_has_its_quota(space, agent, script, more):
    if "env -i" in script:  # which takes away how the simulated driver finds its machine
        (variable,) = agent.machine.environment.items()
        script = script.replace("env -i", f"env -i {'='.join(variable)}")
    ended = run(space, container("a", 30, 8, f"{script} > /dev/termination-log 2>&1", **more))
    found = said(ended, "a")
    assert (int(found["total"]) / UNIT, found["refused"]) == (8, "2")


def test_a_container_of_the_same_pod_that_asked_for_nothing_has_no_driver(space, agent):
    plain = container("b", 0, 0)
    ended = run(space, container("a", 30, 8), plain)
    assert int(said(ended, "a")["total"]) == 8 * UNIT
    assert "libcuda.so.1: cannot open" in rig.state(ended, "b")["state"]["terminated"]["message"]


def test_an_ephemeral_container_has_no_driver(space, agent):
    space.create("pods", rig.pod("p", container("a", 30, 8, "/client; sleep 60")))
    space.until("pods", "p", lambda it: rig.runs(it, "a"))
    debug = {
        "name": "debug",
        "image": agents.CLIENT,
        "command": ["/bin/sh", "-c", "/client > /dev/termination-log 2>&1"],
        "targetContainerName": "a",
    }
    add = {"op": "add", "path": "/spec/ephemeralContainers", "value": [debug]}
    space.patch("p", add, part="/ephemeralcontainers")

    def ended(pod):
        found = pod["status"].get("ephemeralContainerStatuses") or [{"state": {}}]
        return found[0]["state"].get("terminated")

    pod = space.until("pods", "p", ended)
    assert "libcuda.so.1: cannot open" in ended(pod)["message"]


@pytest.mark.alone
def test_without_cdi_a_container_has_its_quota_too(space, agent):
    agent.stop()
    agent.start("--no-require-cdi")
    try:
        template = rig.pod("p", container("small", 30, 8), container("large", 60, 16))
        space.create("pods", template)
        ended = space.until("pods", "p", rig.has_ended)
        found = [int(said(ended, name)["total"]) / UNIT for name in ("small", "large")]
        assert found == [8, 16]
    finally:
        agent.stop()
        agent.start()
