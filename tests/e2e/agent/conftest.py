"""An agent on the cluster's node, for all tests of this folder."""

import agents
import pytest


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    folder = tmp_path_factory.mktemp("agent")
    agents.make_image(folder)
    made = agents.Agent(folder)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def agent(running):
    """The agent, as it should be after each test: with nothing left of any grant."""
    yield running
    running.wait(lambda: not running.present())
