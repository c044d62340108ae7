"""The agent as users install it: from its image, in an unprivileged pod."""

import json
import signal

import agent_set
import agents
import bindings_image
import pytest
import rig
from agents import UNIT, container

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(300)]

AUDIT = ("agent.options={--audit-action=kill}",)
NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
OPENS = f"""
import os
for name in {NODES}:
    try:
        os.close(os.open("{{folder}}/" + name, os.O_RDONLY))
        print(name, "opens")
    except OSError as exc:
        print(name, exc.strerror)
"""
# Prints the container's own processes; the container sees the node's, too.
COMMANDS = """
import glob, os
for folder in glob.glob("/proc/[0-9]*"):
    try:
        if os.readlink(folder + "/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            print(open(folder + "/cmdline").read())
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def installed(running):
    running.until_idle()
    running.stop()
    made = agent_set.AgentSet(running)
    try:
        made.install()
        yield made
    finally:
        print(made.story())
        made.remove()


@pytest.fixture
def agent(running, installed):
    """The node of the agent's pod; after each test no grant may be left."""
    yield running
    running.until_idle()


@pytest.fixture
def space(agent):
    with rig.space() as made:
        yield made


def has_ended(job):
    return rig.condition(job, "Complete") or rig.condition(job, "Failed")


def test_job_with_two_containers_has_30_and_70_vcore(space, agent, installed):
    bindings_image.make(agent.folder)
    large = container("large", 70, 24)
    large |= {"image": bindings_image.NAME, "command": bindings_image.COMMAND}
    template = rig.pod("p", container("small", 30, 8, "/client; sleep 3"), large)
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    allocated = {"small": "0.3", "large": "0.7"}
    agent.wait(lambda: allocated == installed.figures("pyvgpu_container_vcore_allocated_ratio"))
    ended = space.until("jobs", "j", has_ended)
    assert rig.condition(ended, "Complete"), space.pods_of("j")
    (pod,) = space.pods_of("j")
    name = pod["metadata"]["name"]
    small = dict(line.split(" ", 1) for line in agents.logs(space, name, "small").splitlines())
    assert (int(small["total"]), small["refused"], small["wrong"]) == (8 * UNIT, "2", "0")
    found = json.loads(agents.logs(space, name, "large"))
    assert found["total"] == found["nvml"] == 24 * UNIT
    assert found["taken"] < 24 * UNIT < found["taken"] + found["context"] + (128 << 20)
    assert found["refused"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["pids"] == [found["pid"]]


def test_agent_opens_device_nodes_without_privilege(installed):
    said = installed.execute("agent", OPENS.format(folder="/dev")).splitlines()
    assert said == [f"{node} opens" for node in NODES]
    status = installed.execute("agent", "print(open('/proc/self/status').read())")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {facts[name] for name in ("CapEff", "CapBnd", "CapPrm")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert "device-plugin" in installed.execute("agent", COMMANDS)
    with pytest.raises(AssertionError, match="Read-only file system"):
        installed.execute("agent", "open('/x', 'w')")


def test_pod_with_only_the_device_folder_opens_no_device(installed):
    said = installed.execute("control-nodes", OPENS.format(folder="/driver/dev")).splitlines()
    assert said == [f"{node} Operation not permitted" for node in NODES]


def test_agents_account_has_exactly_the_listed_permissions(installed):
    def rights(account):
        text = agent_set.kubectl("auth", "can-i", "--list", f"--as={account}", "--no-headers")
        return {" ".join(line.split()) for line in text.splitlines()}

    begun = f"system:serviceaccount:{agent_set.NAMESPACE}"
    assert rights(f"{begun}:{agent_set.ACCOUNT}") - rights(f"{begun}:default") == {
        "pods [] [] [get list watch delete]",
        "nodes [] [] [list watch patch]",
        "events [] [] [create]",
    }


def test_rollout_of_the_agent_does_not_disturb_containers(space, agent, installed):
    script = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
    space.create("pods", rig.pod("p", container("a", 30, 8, script), restartPolicy="Always"))
    before = space.until("pods", "p", lambda pod: rig.runs(pod, "a"))
    agent_set.kubectl("rollout", "restart", "daemonset/control-nodes", "daemonset/agent")
    for name in ("control-nodes", "agent"):
        installed.roll_out(name)
    agent.wait_for_offers()
    space.create("pods", rig.pod("q", container("a", 60, 16)))
    ended = space.until("pods", "q", rig.has_ended)
    assert int(agents.said(ended, "a")["total"]) == 16 * UNIT
    now = space.read("pods", "p")
    assert rig.state(now, "a")["containerID"] == rig.state(before, "a")["containerID"]


def asks_for_control():
    made = rig.container("a", "true")
    made["resources"] = {"limits": {"pyvgpu.io/control": "1"}}
    return rig.pod("p", made)


def test_policy_refuses_the_control_resource_to_other_pods(space, installed):
    with pytest.raises(apiserver.ServerError, match="only for pyvgpu's own agent"):
        space.create("pods", asks_for_control())


def test_control_plugin_refuses_other_pods_without_the_policy(space, agent, installed):
    agent_set.kubectl("delete", "validatingadmissionpolicybinding", "pyvgpu-control")
    agent_set.kubectl("delete", "daemonset", "agent", "--cascade=foreground")
    agent.wait(lambda: _is_admitted(space))
    space.create("pods", asks_for_control())
    space.until_event("p", "Failed", "only for pods of namespace pyvgpu-agent")
    space.server.call("DELETE", space.path("pods", "p"), body={"gracePeriodSeconds": 0})
    installed.install(*AUDIT)  # for the next test


def test_process_that_bypasses_the_shim_is_reported_and_killed(space, agent, installed):
    """Also a process that loads the image's own driver because of LD_LIBRARY_PATH."""
    installed.become(*AUDIT)
    own = {"env": [{"name": "LD_LIBRARY_PATH", "value": "/opt/own"}]}
    bypassing = {"static": ("/bare", {}), "own": ("/stays", own)}
    for name, (program, more) in (*bypassing.items(), ("held", ("/stays", {}))):
        one = container("a", 20, 8, f"exec {program}", **more)
        space.create("pods", rig.pod(name, one))
    for name in bypassing:
        space.until_event(name, "VGPUQuotaBypassed", "uses gpu0 without the shim")
        space.until_event(name, "VGPUProcessEnded", "--audit-action=kill")
        ended = space.until("pods", name, rig.has_ended)
        assert rig.exit_code(ended, "a") == 128 + signal.SIGKILL
    held = space.read("pods", "held")
    assert rig.runs(held, "a"), rig.state(held, "a")["state"]
    text = installed.metrics()
    assert "pyvgpu_audit_active 1.0\n" in text
    assert "pyvgpu_audit_ended_processes_total 2.0\n" in text


def test_container_has_its_quota_without_cdi(space, agent, installed):
    installed.become("agent.privileged=true")
    assert agent_set.kubectl("get", "daemonsets", "-o", "name") == "daemonset.apps/agent\n"
    space.create("pods", rig.pod("p", container("small", 30, 8), container("large", 60, 16)))
    ended = space.until("pods", "p", rig.has_ended)
    found = [int(agents.said(ended, name)["total"]) / UNIT for name in ("small", "large")]
    assert found == [8, 16]
    assert "pyvgpu_cdi_required 0.0\n" in installed.metrics()
    assert " 403 " not in installed.logs()


def _is_admitted(space):
    try:
        space.server.call("POST", space.path("pods"), {"dryRun": "All"}, asks_for_control())
    except apiserver.ServerError:
        return False
    return True
