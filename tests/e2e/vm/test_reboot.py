"""A real reboot of the node, by systemd and without notice: docs/agent.md says what it does."""

import agents
import pytest
import rig
import undisturbed
from agents import UNIT, container
from virtual_machine import Machine
from waiting import wait_until

pytestmark = pytest.mark.e2e

GRANTS = "/run/pyvgpu-agent/grants"  # of the agent, on the node
UNITS = 16
LABEL = {"app": "owned"}
STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 1; done"


def deployment():
    template = rig.pod("p", container("a", 30, UNITS, STAYS), restartPolicy="Always")
    template["metadata"] = {"labels": LABEL}
    return {
        "metadata": {"name": "owned"},
        "spec": {"replicas": 1, "selector": {"matchLabels": LABEL}, "template": template},
    }


def owned(space, boot):
    """Wait until the Deployment's pod has reported in this boot; return the pod."""

    def is_of_this_boot(pod):
        return rig.runs(pod, "a") and rig.state(pod, "a")["state"]["running"]["startedAt"] > boot

    pod = space.until_any("pods", "app=owned", is_of_this_boot)
    name = pod["metadata"]["name"]
    wait_until(lambda: "returned 1" in agents.logs(space, name, "a"), rig.SECONDS)
    said = dict(line.split(" ", 1) for line in agents.logs(space, name, "a").splitlines())
    assert (int(said["total"]), said["wrong"], said["refused"]) == (UNITS * UNIT, "0", "2")
    return pod


def began(machine):
    """Return when the machine booted, as Kubernetes writes times."""
    return machine.shell('date --utc +%Y-%m-%dT%H:%M:%SZ --date "$(uptime --since)"').strip()


@pytest.mark.parametrize("restart", [Machine.reboot, Machine.reset])
def test_shares_after_a_restart(space, machine, restart):
    space.create("deployments", deployment())
    space.create("pods", rig.pod("bare", container("a", 20, 8, STAYS), restartPolicy="Always"))
    first = space.until("pods", "bare", lambda pod: rig.runs(pod, "a"))
    owned(space, "")

    restart(machine)

    boot = began(machine)
    owned(space, boot)
    # kubelet keeps a pod that it admits after the agent has registered, and fails it else.
    now = space.until(
        "pods",
        "bare",
        lambda pod: rig.has_ended(pod)
        or (rig.runs(pod, "a") and rig.state(pod, "a")["restartCount"]),
    )
    kept = not rig.has_ended(now)
    assert kept or now["status"]["reason"] == "UnexpectedAdmissionError"
    assert now["metadata"]["uid"] == first["metadata"]["uid"]
    undisturbed.has_devices()
    undisturbed.run_beside(space, "new", 50, UNITS)
    wait_until(
        lambda: len(machine.shell(f"ls {GRANTS}").split()) == 1 + kept,
        rig.SECONDS,
        lambda: machine.shell(f"ls -l {GRANTS}"),
    )
