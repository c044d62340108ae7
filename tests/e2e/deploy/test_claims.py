"""The shipped DRA components from their images: driver, webhook, claim controller."""

import contextlib

import agent_set
import agents
import charted
import claimed
import pytest
import rig
import shipped as made
from agents import UNIT, container, said

from pyvgpu.controller.claims import templates
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(400)]

DRIVEN = "/client > /dev/termination-log 2>&1"
LONG_AGO = {"metadata": {"annotations": {"pyvgpu.io/used": "2020-01-01T00:00:00Z"}}}
DRA = "dra.enabled=true"


@contextlib.contextmanager
def applied(*templates):
    """Apply the objects of chart templates during the block."""
    text = charted.listed(charted.part(templates, DRA))
    made.kubectl("apply", "-f", "-", text=text)
    try:
        yield
    finally:
        made.kubectl("delete", "--ignore-not-found", "-f", "-", text=text)


@pytest.fixture(scope="module")
def agent(shipped, tmp_path_factory):
    """The node for agents, with its DeviceClasses; no agent is installed yet."""
    folder = tmp_path_factory.mktemp("agent")
    agents.make_image(folder)
    with agent_set.rights_of("agent/dra.yaml", DRA), applied("dra/"):
        yield agents.Agent(folder)


@pytest.fixture
def parts(agent):
    found = agent_set.AgentSet(agent, lambda: agent.wait(claimed.published))
    try:
        yield found
        agent.until_idle()
        assert clean(found.logs())
    finally:
        print(found.story())
        found.remove()


@contextlib.contextmanager
def rewriting(ours):
    """Convert extended-resource limits to claims during the block."""
    try:
        whole = charted.listed(charted.part(["webhook/"], DRA))
        made.kubectl("apply", "-f", "-", text=whole)
        made.kubectl("rollout", "status", "--timeout=150s", "deployment/claim-controller")
        made.roll_out(ours)
        yield
        assert clean(logs())
    finally:
        print(logs())
        own = charted.listed(charted.part(["webhook/claims-"], DRA))
        made.kubectl("delete", "--ignore-not-found", "-f", "-", text=own)
        made.install()


def logs():
    return "".join(
        made.kubectl("logs", f"--selector=app={app}", "--tail=-1", "--prefix")
        for app in ("webhook", "claim-controller")
    )


def clean(text):
    """Return whether the logs have no refused request and no failure."""
    return not any(word in text for word in (" 403 ", "denied request", "Traceback"))


def total(space, name):
    return int(said(space.until("pods", name, rig.has_ended), "main")["total"])


def test_driver_serves_both_apis_or_dra_only_and_limits_become_claims(
    space, shipped, agent, parts
):
    first, second = (device.uuid for device in agent.machine.devices)
    parts.install(DRA, f"--allocation-api={first}=plugin", "--allocation-switch-delay=1")
    agent.wait(lambda: set(claimed.published()) == {second})
    agent.wait(lambda: agent.allocatable().get("pyvgpu.io/vcore") == "100")
    claimed.start(space, "claim", DRIVEN, claimed.request(30, "3Gi", kind="vgpu"))
    space.create("pods", rig.pod("counted", container("main", 30, 8, DRIVEN)))
    assert [total(space, pod) for pod in ("claim", "counted")] == [12 * UNIT, 8 * UNIT]
    agent.until_idle()

    parts.install(DRA, "--allocation-switch-delay=1")
    agent.wait(lambda: set(claimed.published()) == {first, second})
    with rewriting(shipped):
        limits = rig.pod("limits", container("main", 40, 4, DRIVEN), **claimed.TOKEN)
        one = space.create("pods", limits)
        assert "limits" not in one["spec"]["containers"][0]["resources"]
        (entry,) = one["spec"]["resourceClaims"]
        assert total(space, "limits") == 4 * UNIT

        name = entry["resourceClaimTemplateName"]
        path = templates.path(space.name, name)
        space.server.call("PATCH", path, None, LONG_AGO, apiserver.MERGE_PATCH)
        now = {"gracePeriodSeconds": 0}
        space.server.call("DELETE", space.path("pods", "limits"), body=now)
        assert space.until_gone("pods", "limits")
        made.kubectl("delete", "pods", "--selector=app=claim-controller")  # its successor sweeps
        assert space.until_gone("resourceclaimtemplates", name)
