"""Claims are prepared once, however often kubelet asks, and temporary failures are retried."""

import concurrent.futures

import grant_room
import pytest
from claiming_kubelet import claim, result

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.dra import claim_grants, prepare
from pyvgpu.kube import apiserver

UUID = "GPU-a"
DEVICES = (datatypes.NodeDevice(UUID, 0, 16 << 30),)
GONE = apiserver.ServerError("not there", apiserver.NOT_FOUND)
AWAY = apiserver.ServerError("no answer")


class Server:
    """The objects of an API server, where reads may fail a few times first."""

    def __init__(self):
        self.claims = {}
        self.failures = []
        self.asked = 0

    def read(self, path):
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        name = path.rpartition("/")[2]
        if name not in self.claims:
            raise GONE
        return self.claims[name]

    def add(self, uid, vcore=30):
        one = claim(uid, result(UUID, vcore, "4Gi"))
        self.claims[one["metadata"]["name"]] = one
        return claim_grants.Named("team", uid, one["metadata"]["name"])


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, DEVICES) as made:
        yield made


def preparer_of(room, server, retry_seconds=10.0):
    means = prepare.PreparerDependencies(
        "node-1",
        server.read,
        lambda _: True,
        lambda *_: "",
        lambda _: None,
        retry_seconds=retry_seconds,
    )
    return prepare.Preparer(room.grant_manager, means)


@pytest.fixture
def preparer(room, server):
    return preparer_of(room, server)


def given(preparer, named):
    found = preparer.prepare([named])[named.uid]
    return found if isinstance(found, str) else [device.cdi for device in found]


def test_concurrent_prepares_of_a_claim_get_one_grant(room, server, preparer):
    named = server.add("u1")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: given(preparer, named), range(8)))
    assert len(room.folders.made) == 1
    assert found == [found[0]] * 8


@pytest.mark.parametrize(
    "failure",
    [AWAY, apiserver.ServerError("busy", 503), errors.UnavailableError("no driver")],
    ids=str,
)
def test_temporary_failures_are_retried(room, server, preparer, failure):
    named = server.add("u1")
    server.failures = [failure, failure]
    assert len(given(preparer, named)) == 1
    assert server.asked == 3


def test_final_failure_is_returned_at_once(server, preparer):
    named = claim_grants.Named("team", "u1", "claim-u1")
    assert given(preparer, named) == "pyvgpu: claim team/claim-u1: does not exist any more"
    assert server.asked == 1


def test_lasting_failure_is_returned_after_the_timeout(room, server):
    hasty = preparer_of(room, server, retry_seconds=0)
    first = server.add("u1", 80)
    assert len(given(hasty, first)) == 1
    assert "needs 30 vcore and 4GiB of gpu0, of which 20" in given(hasty, server.add("u2"))
    assert len(room.folders.made) == 1


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        pytest.param((), "its device gpu-a is not there (any more) on this node", id="gone"),
        pytest.param(
            (datatypes.NodeDevice(UUID, 0, 16 << 30, unhealthy="Xid 79"),),
            "is unhealthy: Xid 79",
            id="unhealthy",
        ),
    ],
)
def test_claim_of_a_lost_device_is_prepared_when_it_is_back(room, server, devices, said):
    hasty, named = preparer_of(room, server, retry_seconds=0), server.add("u1")
    room.grant_manager.see(devices)
    assert said in given(hasty, named)
    assert not room.folders.made
    assert not room.grant_manager.known
    room.grant_manager.see(DEVICES)
    assert len(given(hasty, named)) == 1


def test_claim_waits_for_the_processes_of_a_finished_pod(room, server):
    hasty = preparer_of(room, server, retry_seconds=0)
    first, second = server.add("u1", 80), server.add("u2")
    given(hasty, first)
    (grant,) = room.folders.made
    room.folders.used.add(grant)
    assert hasty.unprepare([first]) == {"u1": ""}
    assert room.folders.revoked == {grant}
    assert "held by team/p" in given(hasty, second)
    room.folders.used.clear()
    room.kubelet.write()
    room.grant_manager.collect()
    assert len(given(hasty, second)) == 1


def test_claim_grant_survives_an_empty_kubelet_listing(room, server, preparer):
    given(preparer, server.add("u1"))
    room.kubelet.write()
    room.grant_manager.collect()
    assert len(room.grant_manager.known) == 1


def test_failed_grant_is_retried_with_the_same_id(room, server, preparer):
    named = server.add("u1")
    make, failures = room.folders.make, [errors.UnavailableError("the disk is full")]

    def failing(grant):
        if failures:
            raise failures.pop()
        make(grant)

    room.folders.make = failing
    assert len(given(preparer, named)) == 1
    assert set(room.grant_manager.known) == set(room.folders.made)
