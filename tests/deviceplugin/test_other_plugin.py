"""While another device plugin offers the GPUs of the node, the agent offers none."""

import contextlib
import json

import claiming_kubelet
import pytest
from claiming_kubelet import RefusedError, claim, result
from cluster_of_one import NODE
from fake_kubelet import VCORE, AdmissionError, container, pod

from pyvgpu import names
from pyvgpu.deviceplugin.cluster import other_plugin, own_node
from pyvgpu.kube import apiserver

PATH = f"/api/v1/nodes/{NODE}"
NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
OURS = {names.VCORE_RESOURCE: "200", names.GAIA_VCORE_RESOURCE: "200", names.VMEMORY_RESOURCE: "1"}
NVIDIAS = {"cpu": "8", "nvidia.com/gpu": "2"}
UNREAD = "possibly another device plugin (the node's capacity has not been read yet)"
GAIA = (names.GAIA_VCORE_RESOURCE, names.GAIA_VMEMORY_RESOURCE)


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"cpu": "8", **OURS, "pyvgpu.io/gpu": "4"}, "", id="our own"),
        pytest.param({"nvidia.com/gpu": "8"}, "nvidia.com/gpu: 8", id="whole"),
        pytest.param({"nvidia.com/gpu": "0"}, "", id="none of them"),
        pytest.param({"nvidia.com/gpu": 0}, "", id="none, as a number"),
        pytest.param({"nvidia.com/gpu": "1k"}, "nvidia.com/gpu: 1k", id="a suffix"),
        pytest.param({"nvidia.com/gpu": "0e3"}, "", id="an exponent of none"),
        pytest.param({"nvidia.com/gpu": "-1"}, "", id="below zero"),
        pytest.param({"nvidia.com/gpu.shared": "40"}, "nvidia.com/gpu.shared: 40", id="in time"),
        pytest.param(
            {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "1"},
            "nvidia.com/mig-1g.10gb: 1, nvidia.com/mig-3g.40gb: 2",
            id="instances",
        ),
        pytest.param({"nvidia.com/hostdev": "4", "nvidia.com/rdma": "1"}, "", id="networks"),
        pytest.param({"nvidia.com/GH100_H100_PCIE": "1"}, "", id="passed through"),
        pytest.param({"amd.com/gpu": "4", "example.com/nvidia.com-gpu": "1"}, "", id="others"),
    ],
)
def test_resources_of_another_plugin(capacity, expected):
    assert other_plugin.counted(capacity) == expected


def test_own_resources_are_not_those_of_another_plugin():
    capacity = {"nvidia.com/gpu": "8", "nvidia.com/gpu.shared": "4"}
    assert other_plugin.counted(capacity, ("nvidia.com/gpu.shared",)) == "nvidia.com/gpu: 8"
    assert other_plugin.counted(capacity, tuple(capacity)) == ""


@pytest.mark.parametrize(
    ("labels", "sockets", "said"),
    [
        pytest.param({}, (), "", id="nothing"),
        pytest.param({"nvidia.com/mig.capable": "true"}, (), "", id="a capable node"),
        pytest.param({"nvidia.com/mig.config": "all-disabled"}, (), "MIG manager", id="config"),
        pytest.param({"nvidia.com/gpu.deploy.mig-manager": "true"}, (), "MIG manager", id="runs"),
        pytest.param({"nvidia.com/gpu.deploy.mig-manager": "false"}, (), "", id="not deployed"),
        pytest.param({}, ("gpu.nvidia.com-reg.sock",), "DRA driver gpu.nvidia.com", id="dra"),
        pytest.param({}, ("pyvgpu.io-reg.sock",), "", id="our own dra"),
    ],
)
def test_other_managers_of_mig_instances(tmp_path, labels, sockets, said):
    for name in sockets:
        (tmp_path / name).touch()
    found = other_plugin.mig_manager(labels, tmp_path)
    assert said in found
    assert bool(found) is bool(said)


def set_capacity(cluster, capacity):
    now = cluster.api.read(PATH)
    cluster.api.put(PATH, {**now, "status": {"capacity": capacity}})


def of_node(cluster):
    """Return the events of the node: type, reason, message."""
    found = cluster.api.under("/api/v1/namespaces/default/events")
    return [
        (event["type"], event["reason"], event["message"])
        for event in found
        if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Node", NODE)
    ]


# --- the node -----------------------------------------------------------------------------------


@pytest.fixture
def follow(cluster, tmp_path):
    """Create a follower like a starting agent, with its calls in `back` and `posted`."""

    def make():
        own = own_node.OwnNode(cluster.connection, NODE)
        made = other_plugin.OtherPluginWatch(
            *(
                own,
                tmp_path,
                lambda why: made.back.append(why),
                lambda event: made.posted.append(event),
            )
        )
        made.back, made.posted = [], []
        poll = made.poll

        def see():
            with contextlib.suppress(apiserver.ServerError):
                own.sync()
            poll()

        made.poll = see
        return made

    return make


@pytest.fixture
def follower(follow):
    return follow()


def test_unreadable_node_keeps_the_last_result_with_one_warning(follower, cluster, caplog):
    cluster.api.forbidden = (NODES,)
    follower.poll()
    follower.poll()
    (said,) = caplog.messages
    assert "cannot detect another device plugin" in said
    assert "no device is offered until that is known" in said
    assert "has not been read yet" in said
    assert follower.back == [UNREAD]
    cluster.api.forbidden = ()
    set_capacity(cluster, NVIDIAS)
    follower.poll()
    cluster.api.go_down()
    follower.poll()
    assert follower.back == [UNREAD, "another device plugin (nvidia.com/gpu: 2)"]
    assert caplog.messages[-1].startswith(f"node {NODE} offers no device")


def test_each_change_is_reported_once(follower, cluster):
    set_capacity(cluster, NVIDIAS)
    follower.poll()
    follower.poll()
    set_capacity(cluster, {"nvidia.com/gpu": "0"})
    follower.poll()
    follower.poll()
    assert follower.back == ["another device plugin (nvidia.com/gpu: 2)", ""]
    assert [event.reason.value for event in follower.posted] == ["VGPUNotOffered", "VGPUOffered"]
    assert {(event.uid, event.name) for event in follower.posted} == {("uid-of-node", NODE)}


@pytest.mark.parametrize(
    ("capacity", "back"),
    [
        pytest.param({"cpu": "8"}, [], id="none"),
        pytest.param(NVIDIAS, ["another device plugin (nvidia.com/gpu: 2)"], id="another"),
    ],
)
def test_stored_result_holds_without_the_api_server(follow, cluster, capacity, back):
    set_capacity(cluster, capacity)
    follow().poll()
    cluster.api.forbidden = (NODES,)
    again = follow()
    again.poll()
    again.poll()
    assert again.back == back
    cluster.api.forbidden = ()
    set_capacity(cluster, {"cpu": "8"})
    again.poll()
    assert again.back == [*back, ""][: 2 * len(back)]


@pytest.mark.parametrize("content", [b"", b"7", b"\xff", b"{"])
def test_damaged_record_counts_as_none(follow, cluster, tmp_path, content):
    (tmp_path / other_plugin.FILE).write_bytes(content)
    cluster.api.forbidden = (NODES,)
    found = follow()
    found.poll()
    assert found.back == [UNREAD]
    cluster.api.forbidden = ()
    found.poll()
    assert found.back == [UNREAD, ""]
    assert (tmp_path / other_plugin.FILE).read_bytes() == b'""'
    assert not found.posted


# --- the whole agent ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "resources"),
    [
        pytest.param((), (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE), id="pyvgpu"),
        pytest.param(("--profile", "gaia"), GAIA, id="gaia"),
    ],
)
def test_devices_are_offered_once_the_other_plugin_is_gone(node, cluster, options, resources):
    kubelet = node.kubelet
    set_capacity(cluster, {**NVIDIAS, **OURS})
    more = ("--listen", "127.0.0.1:0", "--kubeconfig", cluster.kubeconfig)
    node.start(*more, *options)
    node.until(lambda: all(map(kubelet.devices.get, resources)))
    node.until(lambda: of_node(cluster))
    assert kubelet.ever_healthy == set()
    ((kind, reason, text),) = of_node(cluster)
    assert (kind, reason) == ("Warning", "VGPUNotOffered")
    assert "its capacity has nvidia.com/gpu: 2" in text
    assert "--beside-nvidia" in text
    assert text in node.log.read_text()
    node.until(lambda: cluster.text)
    found = {device.allocated_by for device in cluster.published.devices}
    assert found == {"another device plugin (nvidia.com/gpu: 2)"}
    node.until(lambda: node.ask("/readyz")[0] == 200)  # kubelet has answered the registration
    assert node.ask("/readyz") == (
        200,
        "none is offered: another device plugin (nvidia.com/gpu: 2) offers the same GPUs\n",
    )
    assert "\npyvgpu_other_plugin 1" in node.ask("/metrics")[1]
    (problem,) = json.loads(node.ask("/status.json")[1])["problems"]
    assert problem["text"].startswith("none is offered: another device plugin")
    set_capacity(cluster, {"cpu": "8", "nvidia.com/gpu": "0", **OURS})
    node.until(lambda: len(kubelet.healthy(resources[0])) == 200)
    assert node.ask("/readyz") == (200, "ok\n")
    node.until(lambda: len(of_node(cluster)) == 2)


@pytest.mark.slow
def test_running_containers_keep_their_grants(node, cluster):
    kubelet = node.kubelet
    node.start("--kubeconfig", cluster.kubeconfig)
    kubelet.until_offered()
    one = pod("p", container("a", 30, 4))
    cluster.add(kubelet.admit(one), {}, owned=True)
    answer = kubelet.start_container(one, "a")
    held = kubelet.ids(one, "a", VCORE)
    set_capacity(cluster, NVIDIAS)
    node.until(lambda: kubelet.healthy(VCORE) == held)
    with pytest.raises(AdmissionError):
        kubelet.admit(pod("q", container("a", 30, 4)))
    assert kubelet.start_container(one, "a") == answer  # as after a crash of the container
    assert node.quota(answer)[0] == 30
    assert not cluster.evictions(one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", [("--beside-nvidia",), ("--simulate", "t4:2")], ids=["forced", "simulated"]
)
def test_beside_nvidia_and_simulate_offer_devices(node, cluster, option):
    set_capacity(cluster, NVIDIAS)
    node.start("--kubeconfig", cluster.kubeconfig, *option)
    node.kubelet.until_offered()
    assert len(node.kubelet.healthy(VCORE)) == 200
    assert not of_node(cluster)


@pytest.mark.slow
def test_without_an_api_server_devices_are_offered_with_a_warning(node):
    node.start()
    node.kubelet.until_offered()
    assert "cannot detect another device plugin, such as NVIDIA's" in node.log.read_text()


@pytest.mark.slow
def test_no_device_is_offered_before_the_node_is_read(node, cluster):
    cluster.api.forbidden = (NODES,)
    node.start("--kubeconfig", cluster.kubeconfig, "--listen", "127.0.0.1:0")
    node.until(lambda: node.kubelet.devices.get(VCORE))
    assert node.kubelet.ever_healthy == set()
    ready = (200, f"none is offered: {UNREAD} offers the same GPUs\n")
    node.until(lambda: node.ask("/readyz") == ready)  # kubelet's answer may still be on its way
    cluster.api.forbidden = ()
    node.until(lambda: len(node.kubelet.healthy(VCORE)) == 200)
    assert not of_node(cluster)


@pytest.mark.slow
def test_claims_are_refused_beside_another_plugin(node, cluster):
    claiming = claiming_kubelet.ClaimingKubelet(node.kubelet.folder.parent)
    uuids = [device.uuid for device in node.machine.devices]

    def devices():
        return {
            device["name"]
            for one in cluster.api.under(SLICES)
            for device in one["spec"]["devices"]
        }

    def put(one):
        meta = one["metadata"]
        folder = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
        cluster.api.put(f"{folder}/{meta['name']}", one)
        cluster.api.put(f"{folder}/{meta['name']}/status", one)
        return meta["namespace"], meta["uid"], meta["name"]

    node.start("--allocation-api", "dra", "--kubeconfig", cluster.kubeconfig, *claiming.options)
    node.until(claiming.listens)
    claiming.meet()
    node.until(devices)
    before = put(claim("u1", result(uuids[0], 30, "4Gi")))
    given = claiming.prepare(before)
    set_capacity(cluster, NVIDIAS)
    node.until(lambda: not devices())
    assert claiming.prepare(before) == given  # the claim of a running pod
    late = put(claim("u2", result(uuids[1], 30, "4Gi")))
    with pytest.raises(RefusedError, match=r"allocated by another device plugin \(nvidia.com/gpu"):
        claiming.prepare(late)
    set_capacity(cluster, {"nvidia.com/gpu": "0"})
    node.until(lambda: devices() == {uuid.lower() for uuid in uuids})
    assert set(claiming.prepare(late)) == {"u2"}
