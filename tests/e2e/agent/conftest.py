"""An agent on the cluster's node, for all tests of this folder."""

import agents
import pytest
import rig


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    with agents.running(tmp_path_factory.mktemp("agent")) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(running):
    """Look, at the end of each file, that nothing is left of any grant."""
    yield
    running.until_idle()


@pytest.fixture
def agent(running, request):
    """The agent as it is without options; for who is alone nobody has anything of it.

    What others had a moment ago may not be over yet: to wait for that each time would take long.
    """
    running.become()
    if request.node.get_closest_marker("alone"):
        running.until_idle()
    return running


@pytest.fixture
def idle(agent):
    """The same, and nobody has anything of it."""
    agent.until_idle()
    return agent


@pytest.fixture
def space(running):
    with rig.space() as made:
        yield made
