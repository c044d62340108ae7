"""Fixtures: a node agent on the cluster's node, shared by all tests of this folder."""

import agent_set
import agents
import pytest
import rig


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    with agents.running(tmp_path_factory.mktemp("agent")) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(running):
    """Check at the end of each file that no grant is left."""
    yield
    running.until_idle()


@pytest.fixture
def agent(running, request):
    """The agent without options; for tests marked alone, without any grant.

    For other tests, grants of earlier tests may still exist: waiting each time would take long.
    """
    running.become()
    if request.node.get_closest_marker("alone"):
        running.until_idle()
    return running


@pytest.fixture
def idle(agent):
    """The agent without options and without any grant."""
    agent.until_idle()
    return agent


@pytest.fixture(scope="module")
def suspend_rules(running):
    """The RBAC rules that the chart adds for `agent.suspend`."""
    with agent_set.rights_of("agent/suspend.yaml", "agent.suspend=true"):
        yield
        running.become()  # without --suspend, before the rules are deleted


@pytest.fixture
def space(running):
    with rig.space() as made:
        yield made
