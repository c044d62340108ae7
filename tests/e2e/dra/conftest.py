"""Fixtures: a node agent that offers devices through DRA, shared by all tests of this folder."""

import agent_set
import agents
import claimed
import pytest


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    folder = tmp_path_factory.mktemp("agent")
    with (
        agent_set.rights_of("agent/dra.yaml", "dra.enabled=true"),
        claimed.device_class(),
        agents.running(folder) as made,
    ):
        yield made


@pytest.fixture
def agent(running):
    """The agent with all devices for claims, without grants."""
    return claimed.become(running, "--allocation-api", "dra")
