"""The steps of the pages on migration, as they stand, on a node that another device plugin has.

The other plugin is only the capacity that it gives the node: a test sets it, and removes it before
it switches the node, since an agent on simulated devices does not wait for another plugin. The
agent's resources stay in the node's capacity for minutes after the agent has left, so this file is
the last of its suite.
"""

import contextlib
import os
from pathlib import Path

import agents
import charts
import documented
import pytest
import rig
import waiting
import webhooks

from pyvgpu import names
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GPU = "nvidia.com/gpu"
REPLICAS, DEVICES = 4, 2
ONE_NODE = {"podDisruptionBudget": {"enabled": False}}  # as the pages say
NO_DNS = {"scheduler": {"clusterIP": "10.96.0.50"}}  # for the second kube-scheduler
PLACEHOLDER = "mirror.example/kube-scheduler:1"  # the page's


class Node:
    """The only node of the cluster."""

    def __init__(self, server):
        self._server = server
        ((node,), _) = server.items("/api/v1/nodes", {})
        self.name = node["metadata"]["name"]

    def set_other_capacity(self, number):
        """Set the capacity of the other plugin; None removes it."""
        body = {"status": {"capacity": {GPU: number}}}
        path = f"/api/v1/nodes/{self.name}/status"
        self._server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)

    def until_allocatable(self, resource, number):
        """Wait until kubelet can allocate this number."""
        escaped = resource.replace(".", "\\.")
        found = f"jsonpath={{.status.allocatable.{escaped}}}={number}"
        charts.run("kubectl", "wait", f"node/{self.name}", f"--for={found}", "--timeout=150s")


@pytest.fixture
def node(images):
    charts.clear()
    made = Node(rig.as_admin().server)
    yield made
    charts.uninstall()
    made.set_other_capacity(None)
    charts.run("kubectl", "uncordon", made.name)
    charts.run("kubectl", "label", "node", made.name, "pyvgpu-", "gpu-")
    state = Path(charts.values()["agent"]["state"])
    for name in ("time-slices.json", "allocation-apis.json"):
        with contextlib.suppress(FileNotFoundError):
            (state / name).unlink()


@pytest.fixture
def follow(node, tmp_path):
    """Return a function that runs a step of a page, with the node's name."""
    (tmp_path / "deploy").symlink_to(documented.ROOT / "deploy")
    file = charts.write(tmp_path / "rig.yaml", charts.values(**ONE_NODE, **NO_DNS))

    def run(step):
        config = {"KUBECONFIG": os.environ["KUBECONFIG"]}
        return documented.follow(step.replace("NODE", node.name), tmp_path, file, **config)

    return run


def desired_agents():
    """Return the number of nodes for which the agent's DaemonSet wants a pod."""
    where = ("--namespace", charts.AGENTS)
    found = "jsonpath={.status.desiredNumberScheduled}"
    return charts.run("kubectl", "get", "daemonset", "agent", *where, "--output", found)


def ask_for(**limits):
    container = agents.container("a", 0, 0)
    container["resources"] = {"limits": limits}
    return container


def install(node, follow, step):
    """Install for no node yet, beside a plugin whose pods run as before."""
    node.set_other_capacity("3")
    follow(step)
    charts.roll_out()
    assert desired_agents() == "0"
    other = rig.container("a", "true", resources={"limits": {GPU: "1"}})
    with rig.space() as space:
        space.create("pods", rig.pod("p", other))
        assert rig.phase(space.until("pods", "p", rig.has_ended)) == "Succeeded"


def switch_over(node, follow, step):
    """Switch the node after the other plugin's capacity has left."""
    node.set_other_capacity(None)
    follow(step)


def client_of(space, container):
    """Run a pod with a CUDA client; return the client's lines."""
    space.create("pods", rig.pod("p", container))
    ended = space.until("pods", "p", rig.has_ended)
    assert rig.phase(ended) == "Succeeded", ended["status"]
    return agents.said(ended, "a")


def test_node_moves_from_hami_and_pods_with_its_names_run(node, follow, folder):
    image = charts.make_scheduler_image(folder)
    charts.run("ctr", "images", "tag", "--force", image, PLACEHOLDER)
    installed, switched, converting = documented.steps("migrate-hami.md")
    charts.run("kubectl", "label", "node", node.name, "gpu=on")
    install(node, follow, installed)
    switch_over(node, follow, switched)
    node.until_allocatable("pyvgpu.io/vcore", 100 * DEVICES)
    follow(converting)
    charts.roll_out()
    hami = ask_for(**{GPU: "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"})
    with rig.space() as space:

        def converted():  # by a replica with the new options
            pod = rig.pod("p", hami, schedulerName="hami-scheduler")
            spec = webhooks.dry_run(space, pod)["spec"]
            return spec["schedulerName"], spec["containers"][0]["resources"]["limits"]

        asked = {names.VCORE_RESOURCE: "30", names.VMEMORY_RESOURCE: "12"}
        waiting.wait_until(lambda: converted() == ("pyvgpu", asked), found=converted)
        assert int(client_of(space, hami)["total"]) == 3072 << 20


def test_node_moves_to_time_slices_and_back(node, follow):
    installed, switched, verified, rolled_back = documented.steps("migrate-nvidia.md")
    install(node, follow, installed)
    switch_over(node, follow, switched)
    node.until_allocatable(GPU, REPLICAS * DEVICES)
    said = follow(verified)
    assert said.startswith(str(REPLICAS * DEVICES))
    assert f"serving {REPLICAS} of {GPU} for each device" in said
    with rig.space() as space:
        whole = client_of(space, ask_for(**{GPU: "1"}))
        assert int(whole["total"]) > 70 << 30
    drain = "".join(line for line in switched.splitlines(keepends=True) if "label" not in line)
    follow(drain)
    follow(rolled_back)
    node.until_allocatable(GPU, 0)
    assert desired_agents() == "0"
