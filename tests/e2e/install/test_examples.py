"""The examples, each followed as its head says in a namespace of its own."""

import concurrent.futures
import contextlib
import http.client
import json
import threading

import example_files
import pytest
import rig
import training_operator
import waiting
from agents import UNIT

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

DONE = "done, and the weights are right"
HELD = {"small": (30, 16 * UNIT), "large": (70, 32 * UNIT)}  # vcore, bytes
ASKED_AT_ONCE = 3  # concurrent requests to each server, so that one always waits for the device


@pytest.fixture(scope="module")
def image(release, tmp_path_factory):
    example_files.make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def reader(image, space, tmp_path):
    made = example_files.Reader(tmp_path, space.name)
    made.begin()
    return made


def test_training_job_ends_although_its_log_shipper_does_not(reader, space):
    reader.follow("training-job.yaml")
    (pod,) = space.pods_of("training")
    codes = [rig.exit_code(pod, name) for name in ("train", "ship")]
    assert (rig.phase(pod), codes) == ("Succeeded", [0, 0])


def test_cron_job_can_be_run_at_once(reader, space):
    *_, said = reader.follow("nightly-cronjob.yaml")
    assert DONE in said
    assert "2048 MiB" in said.splitlines()[0]


def shares(reader):
    """Return the entry of `kubectl vgpu top` for each server."""
    parts = json.loads(reader.do("kubectl vgpu top --output json"))["parts"]
    return {part["pod"].partition("-")[0]: part for part in parts}


def ask(address):
    """Return a server's answer."""
    connection = http.client.HTTPConnection(address, 8000, timeout=rig.SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return json.loads(connection.getresponse().read())


@contextlib.contextmanager
def asked(addresses):
    """Send requests to all servers as fast as they answer, during the block."""
    over = threading.Event()

    def go_on(address):
        count = 0
        while not over.is_set():
            ask(address)
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = [pool.submit(go_on, server) for server in addresses for _ in range(ASKED_AT_ONCE)]
        try:
            yield
        finally:
            over.set()
        assert all(future.result() for future in found)


def test_two_servers_share_one_device_by_their_limits(reader, space):
    reader.follow("inference-servers.yaml")
    addresses = {service: space.read("services", service)["spec"]["clusterIP"] for service in HELD}
    held = shares(reader)
    assert {key: (share["vcore"], share["vmemoryBytes"]) for key, share in held.items()} == HELD
    assert held["small"]["uuid"] == held["large"]["uuid"]
    for name, (_, size) in HELD.items():
        assert ask(addresses[name]) == {"model": "StandIn", "answer": 0.5, "memory": size}
    seen = {}

    def are_as_documented():
        """Return whether neither exceeds its share and the large one has clearly more."""
        seen.update({key: share["usedVcore"] or 0 for key, share in shares(reader).items()})
        return 0 < seen["small"] <= 40 and 1.5 * seen["small"] < seen["large"] <= 80

    with asked(addresses.values()):
        waiting.wait_until(are_as_documented, found=lambda: seen)


def test_resource_quota_counts_shares_of_devices(reader, space):
    said = " ".join(reader.follow("team-quota.yaml")[-1].split())
    assert "requests.pyvgpu.io/vcore 0 60" in said
    (job,) = example_files.objects("training-job.yaml")
    (pod,) = example_files.pods(job)
    space.create("pods", {"metadata": {"name": "first"}, "spec": pod["spec"]})
    with pytest.raises(apiserver.ServerError, match="exceeded quota: vgpu"):
        space.create("pods", {"metadata": {"name": "second"}, "spec": pod["spec"]})


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    with training_operator.running(tmp_path_factory.mktemp("operator")):
        yield


def test_gang_ranks_run_together_or_not_at_all(operator, reader, space):
    _, create, wait, logs = example_files.commands("gang-pytorchjob.yaml")
    taken = {"pyvgpu.io/vcore": "60", "pyvgpu.io/vmemory": "16"}  # on one of two devices
    space.create(
        "pods", rig.pod("first", rig.container("a", rig.RUNS, resources={"limits": taken}))
    )
    space.until("pods", "first", lambda pod: rig.runs(pod, "a"))
    reader.do(create)
    for name in ("gang-master-0", "gang-worker-0"):
        space.until_event(name, "FailedScheduling")
        assert not space.read("pods", name)["spec"].get("nodeName")
    space.server.call("DELETE", space.path("pods", "first"), body={"gracePeriodSeconds": 0})
    reader.do(wait)
    said = reader.do(logs)
    assert said.startswith("rank 1 of 2: ")
    assert DONE in said
