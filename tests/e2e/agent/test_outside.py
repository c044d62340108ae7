"""Metrics, usage and events of the agent for pods of a real cluster."""

import json

import agents
import debian
import pytest
import rig
from agents import NODE, UNIT, container
from prometheus_client import parser

from pyvgpu import names
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.e2e

STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
NODE_PATH = f"/api/v1/nodes/{NODE}"


def stays(space, name="p", script=STAYS, **spec):
    space.create("pods", rig.pod(name, container("a", 30, 8, script), **spec))
    return space.until("pods", name, lambda pod: rig.runs(pod, "a"))


def figures(agent, pod):
    """Return the values of a pod's container metrics, by metric name."""
    text = agent.ask("/metrics")
    return {
        sample.name.removeprefix("pyvgpu_container_"): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("pod") == pod["metadata"]["name"]
        and sample.labels["namespace"] == pod["metadata"]["namespace"]
    }


def test_container_metrics_exist_from_its_start_to_its_end(space, agent):
    pod = stays(space)
    found = figures(agent, pod)
    assert (found["vcore_allocated_ratio"], found["memory_allocated_bytes"]) == (0.3, 8 * UNIT)
    agent.wait(lambda: "returned 1" in agents.logs(space, "p", "a"))
    agent.wait(lambda: figures(agent, pod)["refused_allocations_total"] >= 1)
    (usage,) = [
        usage
        for uid, usage in json.loads(agent.ask("/usage"))["usage"].items()
        if uid == pod["metadata"]["uid"]
    ]
    assert usage["project"] == space.name
    assert usage["spec"] == {"a": {"gpu": 0.3, "mem": 8 * UNIT >> 20}}
    assert agent.ask("/readyz") == "ok\n"
    space.server.call("DELETE", space.path("pods", "p"), body={"gracePeriodSeconds": 0})
    agent.wait(lambda: not figures(agent, pod))


def test_promtool_accepts_the_metrics(space, agent):
    stays(space)
    promtool = debian.unpacked("bookworm", "prometheus", component="main") / "usr/bin/promtool"
    code, said = agents.run_with(agent.ask("/metrics"), promtool, "check", "metrics")
    assert (code, said) == (0, "")


def test_resize_of_a_container_gets_an_event(space, agent):
    stays(space)
    annotations = {names.VCORE_LIMIT_ANNOTATION: "80"}
    agents.annotate(space.path("pods", "p"), annotations)
    space.until_event("p", "VGPUResized", "vcore 30, elastic to 80, vmemory 2GiB")
    agents.annotate(space.path("pods", "p"), {names.PRIORITY_ANNOTATION: "low"})
    space.until_event("p", "VGPUResized", "vcore 30, elastic to 80, priority low, vmemory 2GiB")
    agents.annotate(space.path("pods", "p"), {names.VCORE_LIMIT_ANNOTATION: "10"})
    space.until_event("p", "VGPUNotResized", "must be from the container's own 30 vcore to 100")


@pytest.mark.alone
def test_pods_get_events_when_their_device_is_lost_and_recovers(space, agent):
    stays(space)
    simulator.set_faults(agent.machine, "lost 0")
    space.until_event("p", "VGPUDeviceUnhealthy", "GPU is lost")
    simulator.set_faults(agent.machine)
    space.until_event("p", "VGPUDeviceHealthy", "is healthy again")
    agent.wait_for_offers()


@pytest.mark.alone
def test_device_is_cordoned_by_the_nodes_annotation(space, agent):
    uuid = agent.machine.devices[1].uuid
    agents.annotate(NODE_PATH, {names.CORDONED_ANNOTATION: uuid})
    agent.wait(lambda: agent.allocatable().get(names.VCORE_RESOURCE) == "100")
    agents.annotate(NODE_PATH, {names.CORDONED_ANNOTATION: None})
    agent.wait_for_offers()
