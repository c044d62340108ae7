"""Time slices in a real cluster: containers share whole devices, and no share is beside them."""

import agents
import pytest
import rig

from pyvgpu import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SHARED, VCORE = names.GPU_SHARED_RESOURCE, names.VCORE_RESOURCE
OPTIONS = ("--time-slicing-replicas", "4", "--allocation-switch-delay", "1")
STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"


@pytest.fixture
def slicing(running):
    """The agent with time slices of all devices; afterwards they have shares again."""
    running.make_way(*OPTIONS)
    running.begin(*OPTIONS)
    try:
        running.wait(lambda: running.allocatable().get(SHARED) == "8")
        yield running
    finally:
        running.stop()
        running.begin("--allocation-switch-delay", "1")
        running.wait(lambda: running.allocatable().get(VCORE) == "200")
        running.stop()


def container(number=1, script=""):
    made = agents.container("a", 0, 0, script)
    made["resources"] = {"limits": {SHARED: str(number)}}
    return made


def test_containers_share_a_whole_device(space, slicing):
    whole = slicing.machine.devices[0].memory_bytes
    space.create("pods", rig.pod("stays", container(script=STAYS)))
    space.until("pods", "stays", lambda pod: rig.runs(pod, "a"))
    for number in range(7):
        space.create("pods", rig.pod(f"p{number}", container()))
    for number in range(7):
        ended = space.until("pods", f"p{number}", rig.has_ended)
        assert rig.phase(ended) == "Succeeded", ended["status"]
        assert int(agents.said(ended, "a")["total"]) == whole
    assert not slicing.present()  # no grants
    assert slicing.allocatable().get(VCORE, "0") == "0"
    space.server.call("DELETE", space.path("pods", "stays"))  # its device gets shares again


def test_device_with_a_slice_gets_shares_when_that_has_ended(space, slicing):
    space.create("pods", rig.pod("stays", container(script=STAYS)))
    space.until("pods", "stays", lambda pod: rig.runs(pod, "a"))
    slicing.stop()
    slicing.begin("--allocation-switch-delay", "1")
    slicing.wait(lambda: slicing.allocatable().get(VCORE) == "100")
    space.create("pods", rig.pod("share", agents.container("a", 100, 0)))
    ended = space.until("pods", "share", rig.has_ended)
    assert rig.phase(ended) == "Succeeded", ended["status"]
    assert slicing.allocatable().get(VCORE) == "100"
    space.server.call("DELETE", space.path("pods", "stays"))
    slicing.wait(lambda: slicing.allocatable().get(VCORE) == "200")
