"""An agent on the cluster's node, for all tests of this folder."""

import agents
import pytest
import rig


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    folder = tmp_path_factory.mktemp("agent")
    agents.make_image(folder)
    made = agents.Agent(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
    said = made.log.read_text()  # its rights are those that are shipped
    assert " 403 " not in said
    assert "denied request" not in said


@pytest.fixture
def agent(running):
    """The agent, as it should be after each test: with nothing left of any grant."""
    yield running
    running.wait(lambda: not running.present())


@pytest.fixture
def space(agent):
    """A namespace that is gone before it is looked whether anything is left."""
    with rig.space() as made:
        yield made
