"""Installation, shares, sidecars and removal on another kind of cluster: see ``run`` beside this.

All pods satisfy Pod Security `restricted`, which one of the kinds enforces.
"""

import ipaddress
import json
import os
import pathlib

import agents
import charts
import pytest
import rig
import sidecars
from agents import UNIT, container
from waiting import wait_until

from pyvgpu import names
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

USER = 65534
UNITS = 16  # memory units of the pods
STAYS = "trap 'exit 0' TERM; /stays & while true; do sleep 0.1; done"
NVML = "/nvml-client > /dev/termination-log 2>&1"


def pod(name, *containers, **spec):
    """Return a pod that satisfies Pod Security `restricted`."""
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    own = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    parts = [{**part, "securityContext": confined} for part in containers]
    return rig.pod(name, *parts, securityContext=own, **spec)


def start(space, name, vcore):
    """Start a pod that allocates memory and stays."""
    space.create("pods", pod(name, container("a", vcore, UNITS, STAYS)))
    return space.until("pods", name, lambda current: rig.runs(current, "a"))


def is_unschedulable(current):
    return any(
        (entry["type"], entry["status"], entry.get("reason"))
        == ("PodScheduled", "False", "Unschedulable")
        for entry in current["status"].get("conditions", ())
    )


def families(addresses):
    return [f"ipv{ipaddress.ip_address(address).version}" for address in addresses]


def test_cluster_is_of_its_kind(space):
    """Otherwise the other tests would pass on the default cluster."""
    server = space.server
    (node,) = server.items("/api/v1/nodes", {})[0]
    info = node["status"]["nodeInfo"]
    wanted = os.environ.get("CLUSTER_FAMILIES", "ipv4").split(",")
    where = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    assert families(where) == wanted
    query = {"labelSelector": "app=agent"}
    (agent,) = server.items(f"/api/v1/namespaces/{charts.AGENTS}/pods", query)[0]
    assert families(one["ip"] for one in agent["status"]["podIPs"]) == wanted
    if version := os.environ.get("CLUSTER_KUBERNETES"):
        assert server.call("GET", "/version")["gitVersion"] == f"v{version}"
        assert info["kubeletVersion"] == f"v{version}"
    if version := os.environ.get("CLUSTER_CONTAINERD"):
        assert info["containerRuntimeVersion"].removeprefix("containerd://") == version
    if version := os.environ.get("CLUSTER_CRIO"):
        assert info["containerRuntimeVersion"] == f"cri-o://{version}"
    if os.environ.get("CLUSTER_CDI") == "false":
        settings = pathlib.Path(os.environ["CLUSTER_HOME"], "run/containerd.toml").read_text()
        assert "enable_cdi = false" in settings
        assert agent["spec"]["containers"][0]["securityContext"]["privileged"]
    if os.environ.get("CLUSTER_POD_SECURITY"):
        with pytest.raises(apiserver.ServerError, match="violates PodSecurity"):
            space.create("pods", rig.pod("root", rig.container("a", "true")))


@pytest.mark.parametrize(
    "script", [pytest.param("", id="CUDA"), pytest.param(NVML, id="CUDA-and-NVML")]
)
def test_share_is_placed_by_the_second_scheduler_and_enforced(space, script):
    """The program allocates until CUDA refuses."""
    space.create("pods", pod("p", container("a", 30, UNITS, script)))
    ended = space.until("pods", "p", rig.has_ended)
    said = agents.said(ended, "a")
    assert rig.phase(ended) == "Succeeded", ended["status"]
    assert ended["spec"]["schedulerName"] == "pyvgpu"
    assert names.DEVICES_ANNOTATION in ended["metadata"]["annotations"]
    assert (int(said["total"]), said["wrong"]) == (UNITS * UNIT, "0")
    assert 0 < int(said["taken"]) <= UNITS * UNIT
    assert (said["refused"], said["beyond"]) == ("2", "2")  # CUDA_ERROR_OUT_OF_MEMORY
    if script:
        text = rig.state(ended, "a")["state"]["terminated"]["message"]
        assert f"nvml start 1 {UNITS * UNIT} " in text


def test_pod_beyond_the_node_waits_until_a_device_is_free(space):
    for name in ("one", "two"):
        start(space, name, 90)
    space.create("pods", pod("three", container("a", 90, UNITS, STAYS)))
    space.until("pods", "three", is_unschedulable)
    space.server.call("DELETE", space.path("pods", "one"))
    space.until("pods", "three", lambda current: rig.runs(current, "a"))


def test_job_completes_though_its_marked_sidecar_ignores_signals(space):
    side = sidecars.sidecar(rig.IGNORES_TERM)
    template = pod("p", rig.container("main", "sleep 1"), side)
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    done = space.until("jobs", "j", lambda job: rig.condition(job, "Complete"))
    assert (done["status"]["succeeded"], done["status"].get("failed", 0)) == (1, 0)


def test_kubectl_vgpu_shows_what_agents_measure(space):
    start(space, "p", 30)
    asked = ("kubectl", "vgpu", "top", "--namespace", space.name, "--output", "json")

    def is_reported():
        (part,) = json.loads(charts.run(*asked))["parts"]
        assert (part["pod"], part["vmemoryBytes"]) == ("p", UNITS * UNIT)
        return 0 < part["heldBytes"] <= UNITS * UNIT

    wait_until(is_reported)


def test_removal_leaves_nothing(release):
    charts.uninstall()
    assert charts.left() == []
