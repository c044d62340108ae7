"""`pyvgpu dra-driver` as a program, with a kubelet and an API server, on a simulated node."""

import json
import signal
from pathlib import Path

import claiming_kubelet
import node_process
import pytest
import simulated_node
import small_disks
from claiming_kubelet import Given, RefusedError, claim, result

from pyvgpu import names as known
from pyvgpu import quota, region
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.slow

MIB = 1 << 20
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def claiming(kubelet):
    return claiming_kubelet.ClaimingKubelet(kubelet.folder.parent)


@pytest.fixture
def start(node, cluster, claiming):
    """Start an agent as a DRA driver."""

    def begin(*options):
        more = ("--kubeconfig", cluster.kubeconfig, *claiming.options, *options)
        process = node.start("--allocation-api", "dra", *more)
        node.until(claiming.listens)
        claiming.meet()
        node.until(lambda: devices(cluster))
        return process

    return begin


@pytest.fixture
def uuids(node):
    return [device.uuid for device in node.machine.devices]


def devices(cluster):
    """Return the devices in the slice of the node, by name."""
    found = cluster.api.under(SLICES)
    return {device["name"]: device for one in found for device in one["spec"]["devices"]}


def put(cluster, one):
    meta = one["metadata"]
    cluster.api.put(path_of(meta["name"]), one)
    cluster.api.put(path_of(meta["name"]) + "/status", one)
    return meta["namespace"], meta["uid"], meta["name"]


def path_of(name):
    return f"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}"


def cordon(cluster, uuid):
    meta = {"name": "node-1", "uid": "u", "annotations": {known.CORDONED_ANNOTATION: uuid}}
    cluster.api.put("/api/v1/nodes/node-1", {"metadata": meta})


def edits(node, cdi):
    kind, _, name = cdi.partition("=")
    file = node.specifications / f"{kind.replace('/', '-')}-{name}.json"
    return json.loads(file.read_text())["devices"][0]["containerEdits"]


def limits(node, given):
    """Return the limits of the container that has that CDI device."""
    (cdi,) = given.cdi
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits(node, cdi)["mounts"]}
    with Path(mounts["/etc/pyvgpu"], "quota").open("rb") as file:
        return region.read_limits(file.fileno())


def test_prepare_and_unprepare_are_idempotent(node, cluster, claiming, start, uuids):
    process = start()
    info = claiming.meet()
    assert (info.type, info.name) == ("DRAPlugin", "pyvgpu.io")
    assert "v1.DRAPlugin" in info.supported_versions
    assert set(devices(cluster)) == {uuid.lower() for uuid in uuids}
    one = put(cluster, claim("u1", result(uuids[1], 30, "4Gi")))
    (given,) = claiming.prepare(one)["u1"]
    assert given == Given(["vgpu"], "node-1", uuids[1].lower(), given.cdi, "share-of-vgpu")
    found = limits(node, given)
    (held,) = found.devices
    assert (held.uuid, held.vcore, held.vmemory) == (uuids[1], 30, 4096 * MIB)
    node.until(lambda: "devices" in cluster.api.read(path_of("claim-u1") + "/status")["status"])
    assert claiming.prepare(one) == {"u1": [given]}
    node_process.ended(process, signal.SIGKILL)
    cluster.api.delete(path_of("claim-u1"))  # a restarted agent does not read the claim again
    start()
    assert claiming.prepare(one) == {"u1": [given]}
    assert claiming.unprepare(one) == {"u1": ""}
    assert not list(node.specifications.glob("pyvgpu.io-grant-*"))
    assert claiming.unprepare(one) == {"u1": ""}
    assert claiming.unprepare(("team", "never", "seen")) == {"never": ""}
    with pytest.raises(RefusedError, match="claim team/claim-u1: does not exist any more"):
        claiming.prepare(one)


def test_prepare_and_unprepare_calls_are_counted(node, cluster, claiming, start, uuids):
    start("--listen", "127.0.0.1:0")
    one = put(cluster, claim("u1", result(uuids[0], 30, "4Gi")))
    claiming.prepare(one)
    claiming.unprepare(one)
    with pytest.raises(RefusedError):
        claiming.prepare(one, ("team", "never", "seen"))
    _, text = node.ask("/metrics")
    counts = [line for line in text.splitlines() if "prepare" in line and "seconds_count{" in line]
    assert sorted(counts) == [
        f'pyvgpu_kubelet_call_seconds_count{{call="{call}",result="{result}"}} {count}'
        for call, result, count in (
            ("prepare", "done", 1.0),
            ("prepare", "refused", 1.0),
            ("unprepare", "done", 1.0),
            ("unprepare", "refused", 0.0),
        )
    ]


def test_slice_is_published_only_after_registration(node, cluster, claiming):
    more = ("--kubeconfig", cluster.kubeconfig, *claiming.options)
    node.start("--allocation-api", "dra", *more)
    node.until(claiming.listens)
    cluster.api.wait_for("WATCH", SLICES)
    assert not devices(cluster)
    claiming.meet()
    node.until(lambda: devices(cluster))


def test_each_claim_of_a_pod_is_a_quota(node, cluster, claiming, start, uuids):
    start()
    pod = {
        "metadata": {"name": "p", "namespace": "team", "uid": "uid-p"},
        "spec": {
            "nodeName": "node-1",
            "resourceClaims": [
                {"name": name, "resourceClaimName": f"claim-{name}"} for name in ("u1", "u2")
            ],
            "containers": [
                {"name": name, "resources": {"claims": [{"name": name}]}} for name in ("u1", "u2")
            ],
        },
    }
    cluster.api.put("/api/v1/namespaces/team/pods/p", pod)
    config = [
        {
            "opaque": {
                "driver": "pyvgpu.io",
                "parameters": {
                    "apiVersion": "pyvgpu.io/v1alpha1",
                    "kind": "VGPUConfig",
                    "vcoreLimit": 80,
                },
            }
        }
    ]
    two = claim("u2", result(uuids[0], 40, "3Gi"), result(uuids[1], 50, "2Gi"))
    two["status"]["allocation"]["devices"]["config"] = config
    names = [put(cluster, claim("u1", result(uuids[0], 30, "4Gi"))), put(cluster, two)]
    found = claiming.prepare(*names)
    assert [device.vcore for device in limits(node, found["u1"][0]).devices] == [30]
    first, second = found["u2"]
    assert not second.cdi  # the first one carries it
    both = limits(node, first)
    assert [(device.uuid, device.vcore) for device in both.devices] == [
        (uuids[0], 40),
        (uuids[1], 50),
    ]
    assert {device.policy for device in both.devices} == {quota.TimePolicy.ELASTIC}
    pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "u2"})
    cluster.api.put("/api/v1/namespaces/team/pods/p", pod)
    claiming.unprepare(*names)
    with pytest.raises(
        RefusedError, match="container u1 uses claim-u1, claim-u2: a container can"
    ):
        claiming.prepare(*names)


def test_slice_follows_the_devices_and_is_recreated(node, cluster, claiming, start, uuids):
    start()
    claiming.meet()
    heard = claiming.health()
    assert next(heard) == {uuid.lower(): (1, "") for uuid in uuids}
    (before,) = cluster.api.under(SLICES)
    cordon(cluster, uuids[0])
    first = uuids[0].lower()
    node.until(lambda: devices(cluster)[first].get("taints"))
    assert devices(cluster)[first]["taints"][0]["key"] == known.DRA_CORDONED_TAINT
    (one,) = cluster.api.under(SLICES)
    assert one["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]
    second = uuids[1].lower()
    simulator.set_faults(node.machine, "lost 1")
    node.until(lambda: devices(cluster)[second].get("taints"))
    assert devices(cluster)[second]["taints"][0]["key"] == known.DRA_UNHEALTHY_TAINT
    update = next(heard)
    assert (update[first], update[second][0]) == ((1, ""), 2)
    assert "GPU is lost" in update[second][1]
    cluster.api.delete(f"{SLICES}/node-1-pyvgpu.io")  # as a starting kubelet does
    claiming.meet()
    node.until(lambda: devices(cluster))


def test_device_for_claims_is_not_offered_by_the_plugin(
    node, cluster, claiming, start, kubelet, uuids
):
    start("--allocation-api", f"{uuids[0]}=plugin")
    assert set(devices(cluster)) == {uuids[1].lower()}
    node.until(lambda: len(kubelet.devices.get("pyvgpu.io/vcore", {})) == 200)
    node.until(lambda: sum(kubelet.devices["pyvgpu.io/vcore"].values()) == 100)
    node.until(
        lambda: [device.allocated_by for device in cluster.published.devices] == ["", "dra"]
    )


def test_claims_survive_a_damaged_checkpoint(node, cluster, claiming, start, uuids):
    process = start()
    one = put(cluster, claim("u1", result(uuids[0], 30, "4Gi")))
    (before,) = claiming.prepare(one)["u1"]
    node_process.ended(process)
    (node.state / "checkpoint").write_bytes(b"garbage")
    start()
    assert claiming.prepare(one) == {"u1": [before]}
    assert [device.vcore for device in limits(node, before).devices] == [30]


def test_admin_claim_gets_a_new_driver_at_the_next_start(node, cluster, claiming, start, uuids):
    start()
    one = put(cluster, claim("admin", {**result(uuids[0], 1, "1Gi"), "adminAccess": True}))
    (given,) = claiming.prepare(one)["admin"]

    def sources():
        return "".join(mount["hostPath"] for mount in edits(node, given.cdi[0])["mounts"])

    assert f"/{simulator.DRIVER_RELEASE}-" in sources()
    simulated_node.rename_driver(node.root, simulator.DRIVER_RELEASE, "999.2")
    node.until(lambda: "/999.2-" in sources())
    assert f"/{simulator.DRIVER_RELEASE}-" not in sources()
    assert claiming.prepare(one) == {"admin": [given]}
    assert claiming.unprepare(one) == {"admin": ""}
    assert not list(node.specifications.glob("*-admin-*"))


def test_unwritable_specification_leaves_no_partial_grant(
    node, cluster, claiming, start, uuids, small_disk
):
    node.specifications = small_disk / "cdi"
    start("--cdi", node.specifications)
    first = put(cluster, claim("u1", result(uuids[0], 30, "4Gi")))
    second = put(cluster, claim("u2", result(uuids[0], 40, "2Gi")))
    third = put(cluster, claim("u3", {**result(uuids[0], 1, "1Gi"), "adminAccess": True}))
    (before,) = claiming.prepare(first)["u1"]
    small_disks.allow_writing(small_disk, allowed=False)
    for one in (second, third):
        with pytest.raises(RefusedError) as caught:
            claiming.prepare(one)
        assert "the CDI specification cannot be written: Read-only file system" in str(
            caught.value
        )
        assert "\n" not in str(caught.value)
    (left,) = node.specifications.iterdir()  # no draft, and no file of the failed claims
    assert left.stem.endswith(before.cdi[0].partition("=")[2])
    assert claiming.prepare(first) == {"u1": [before]}
    assert "Read-only file system" in claiming.unprepare(first)["u1"]
    small_disks.allow_writing(small_disk, allowed=True)
    assert [
        device.vcore for device in limits(node, claiming.prepare(second)["u2"][0]).devices
    ] == [40]
    assert claiming.prepare(third)["u3"]
    assert claiming.unprepare(first, second, third) == {"u1": "", "u2": "", "u3": ""}
    assert not list(node.specifications.iterdir())


def test_cluster_without_sharing_gets_whole_devices_and_a_warning(
    node, cluster, claiming, start, uuids
):
    cluster.api.unknown = frozenset({"allowMultipleAllocations", "requestPolicy", "taints"})
    cordon(cluster, uuids[1])
    start()
    node.until(lambda: set(devices(cluster)) == {uuids[0].lower()})
    said = [line for line in node.log.read_text().splitlines() if "does not support" in line]
    assert [line for line in said if "DRAConsumableCapacity" in line and "no shares" in line]
    one = result(uuids[0], 30, "4Gi")
    del one["consumedCapacity"]  # as that cluster's scheduler does
    (given,) = claiming.prepare(put(cluster, claim("u1", one)))["u1"]
    assert not any(
        "/etc/pyvgpu" in mount["containerPath"] for mount in edits(node, given.cdi[0])["mounts"]
    )
