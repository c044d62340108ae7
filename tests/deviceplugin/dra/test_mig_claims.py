"""Claims of MIG partitions, with a kubelet and an API server, on a simulated node."""

import contextlib
import json
import signal

import claiming_kubelet
import mig_node
import node_process
import pytest
import simulated_node
from claiming_kubelet import RefusedError, claim

from pyvgpu.allocator import mig_placement
from pyvgpu.deviceplugin.containers import mig_instances
from pyvgpu.deviceplugin.dra import mig_partitions
from pyvgpu.simulation import mig, simulator

pytestmark = pytest.mark.slow

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
POOL = "node-1/mig"
LATEST, OLDER = {"major": "1", "minor": "36"}, {"major": "1", "minor": "34"}


@pytest.fixture(name="claiming")
def fixture_claiming(kubelet):
    return claiming_kubelet.ClaimingKubelet(kubelet.folder.parent)


@pytest.fixture(name="node")
def fixture_node(kubelet, cluster, tmp_path):
    """A node with a GPU in MIG mode without instances, and another GPU."""
    cluster.api.put("/version", LATEST)
    machine = simulator.open_machine("h100:mig=none,t4", tmp_path / "machines")
    root = simulated_node.make(tmp_path / "root", simulated_node.nodes(2))
    mig_node.capabilities(root / "proc")
    with contextlib.ExitStack() as stack:
        yield node_process.Node(kubelet, machine, root, tmp_path, stack)


@pytest.fixture(name="start")
def fixture_start(node, cluster, claiming):
    """Start an agent as a DRA driver that creates MIG instances."""

    def begin(*options):
        more = ("--kubeconfig", cluster.kubeconfig, *claiming.options, *options)
        process = node.start("--allocation-api", "dra", "--dynamic-mig", "all", *more)
        node.until(claiming.listens)
        claiming.meet()
        node.until(lambda: specs(cluster))
        return process

    return begin


def specs(cluster):
    return [one["spec"] for one in cluster.api.under(SLICES)]


def devices(cluster, pool=POOL):
    """Return the devices of a pool, by name."""
    found = [spec for spec in specs(cluster) if spec["pool"]["name"] == pool]
    return {device["name"]: device for spec in found for device in spec.get("devices", ())}


def counters(cluster):
    return [each for spec in specs(cluster) for each in spec.get("sharedCounters", ())]


def name(node, place):
    """Return the name of a partition of the GPU, by its placement."""
    return mig_partitions.name_of(node.machine.devices[0].uuid, *mig_placement.split(place))


def allocate(node, cluster, uid, place, request="vgpu"):
    """Put a claim that has a partition; return kubelet's name of it."""
    one = claim(uid, {"request": request, "pool": POOL, "device": name(node, place)})
    path = f"{CLAIMS}/{one['metadata']['name']}"
    cluster.api.put(path, one)
    cluster.api.put(f"{path}/status", one)
    return "team", uid, one["metadata"]["name"]


def instances(node):
    return {(one.profile, one.uuid) for one in simulator.mig_state(node.machine).instances}


def capabilities(node, given):
    kind, _, grant = given.cdi[0].partition("=")
    file = node.specifications / f"{kind.replace('/', '-')}-{grant}.json"
    edits = json.loads(file.read_text())["devices"][0]["containerEdits"]
    assert all(mount["containerPath"] != "/etc/pyvgpu" for mount in edits["mounts"])
    paths = {one["path"] for one in edits["deviceNodes"]}
    return {path for path in paths if "nvidia-cap" in path}


def test_partition_of_a_claim_is_created_and_destroyed(node, cluster, claiming, start):
    start()
    node.until(lambda: devices(cluster))
    assert len(devices(cluster)) == 25
    assert set(devices(cluster, "node-1")) == {node.machine.devices[1].uuid.lower()}
    (published,) = counters(cluster)
    assert published["name"] == node.machine.devices[0].uuid.lower()
    one = allocate(node, cluster, "u1", "3g.40gb@4")
    (given,) = claiming.prepare(one)["u1"]
    assert (given.pool, given.device) == (POOL, name(node, "3g.40gb@4"))
    ((profile, uuid),) = instances(node)
    assert profile == "3g.40gb"
    (found,) = simulator.mig_state(node.machine).instances
    assert capabilities(node, given) == {
        f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in mig_node.minors(found.gpu_instance)
    }
    assert claiming.prepare(one)["u1"] == [given]
    assert instances(node) == {(profile, uuid)}
    status = f"{CLAIMS}/{one[2]}/status"
    node.until(lambda: "devices" in cluster.api.read(status)["status"])
    (said,) = cluster.api.read(status)["status"]["devices"]
    assert (said["pool"], said["device"], said["data"]["mig"]) == (
        POOL,
        given.device,
        "3g.40gb@4",
    )
    assert claiming.unprepare(one) == {"u1": ""}
    assert instances(node) == set()
    assert claiming.unprepare(one) == {"u1": ""}


def test_claim_survives_killed_agents_and_a_lost_checkpoint(node, cluster, claiming, start):
    agent = start()
    node.until(lambda: devices(cluster))
    one = allocate(node, cluster, "u1", "1g.10gb@6")
    (given,) = claiming.prepare(one)["u1"]
    before = instances(node)
    node_process.ended(agent, signal.SIGKILL)
    agent = start()
    assert claiming.prepare(one)["u1"] == [given]
    assert instances(node) == before

    node_process.ended(agent, signal.SIGKILL)
    (node.state / "checkpoint").write_bytes(b"garbage")
    agent = start()
    assert claiming.prepare(one)["u1"] == [given]
    assert instances(node) == before

    node_process.ended(agent, signal.SIGKILL)
    start()
    assert claiming.unprepare(one) == {"u1": ""}
    node.until(lambda: instances(node) == set())


def test_claim_of_an_agent_that_was_killed_before_it_created_the_instance(
    node, cluster, claiming, start
):
    agent = start()
    node.until(lambda: devices(cluster))
    one = allocate(node, cluster, "u1", "1g.10gb@6")
    (given,) = claiming.prepare(one)["u1"]
    node_process.ended(agent, signal.SIGKILL)
    (node.state / mig_instances.FILE).unlink()  # as after the checkpoint, before the record
    (node.machine.folder / mig.FILE).write_text("gpu 0\n")
    start()
    assert claiming.prepare(one)["u1"] == [given]
    assert {profile for profile, _ in instances(node)} == {"1g.10gb"}


def test_overlapping_allocation_is_refused_when_it_is_prepared(node, cluster, claiming, start):
    start()
    node.until(lambda: devices(cluster))
    claiming.prepare(allocate(node, cluster, "u1", "1g.10gb@6"))
    late = allocate(node, cluster, "u2", "3g.40gb@4")
    with pytest.raises(RefusedError, match=r"no place for it beside 1g.10gb@6; held by team/p"):
        claiming.prepare(late)
    assert {profile for profile, _ in instances(node)} == {"1g.10gb"}
    claiming.unprepare(("team", "u1", "claim-u1"))
    assert claiming.prepare(late)["u2"]
    assert {profile for profile, _ in instances(node)} == {"3g.40gb"}


def test_server_before_1_35_gets_counters_beside_their_devices(node, cluster, start):
    cluster.api.put("/version", OLDER)
    start()
    node.until(lambda: devices(cluster))
    joined = [spec for spec in specs(cluster) if spec.get("sharedCounters")]
    assert [len(spec["devices"]) for spec in joined] == [25]
    assert ("GET", "/version") in cluster.api.asked


def test_cluster_without_counters_gets_no_partitions_and_a_warning(node, cluster, start):
    cluster.api.unknown = frozenset({"sharedCounters", "consumesCounters"})
    start()
    node.until(lambda: "DRAPartitionableDevices" in node.log.read_text())
    node.until(lambda: devices(cluster, "node-1"))
    assert set(devices(cluster, "node-1")) == {node.machine.devices[1].uuid.lower()}
    assert {spec["pool"]["name"] for spec in specs(cluster)} == {"node-1"}
    history = [thing["spec"] for _, _, where, thing in cluster.api._history if where == SLICES]
    assert all(spec["pool"]["name"] == "node-1" for spec in history), "not for a moment"


def test_partition_in_use_stays_published_while_its_gpu_is_out_of_mig_mode(
    node, cluster, claiming, start
):
    start("--recover-seconds", "1")
    node.until(lambda: len(devices(cluster)) == 25)
    one = allocate(node, cluster, "u1", "1g.10gb@6")
    claiming.prepare(one)
    before = devices(cluster)[name(node, "1g.10gb@6")]
    (counted,) = counters(cluster)
    (node.machine.folder / mig.FILE).write_text("")
    node.until(lambda: len(devices(cluster)) == 1)
    (kept,) = devices(cluster).values()
    assert kept["name"] == before["name"]
    assert kept["consumesCounters"] == before["consumesCounters"]
    assert kept["taints"] == [{"key": "pyvgpu.io/unhealthy", "effect": "NoSchedule"}]
    assert counters(cluster) == [counted]

    (node.machine.folder / mig.FILE).write_text("gpu 0\n")
    node.until(lambda: len(devices(cluster)) == 25)
    assert claiming.prepare(one)["u1"]
    assert {profile for profile, _ in instances(node)} == {"1g.10gb"}
