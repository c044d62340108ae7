"""The node's devices and placements are published before a container starts on a new grant."""

import json

import grant_room
import json_schema
import pytest
import waiting
from cluster_of_one import NODE
from fake_kubelet import container, pod
from grant_room import UNIT

from pyvgpu import names, quota
from pyvgpu.allocator import datatypes, schemas
from pyvgpu.deviceplugin.cluster import node_annotation


@pytest.fixture
def publisher(own, monkeypatch):
    """A publisher of this fixture's `text`."""
    monkeypatch.setattr(node_annotation, "AGAIN_SECONDS", 0.1)
    made = node_annotation.NodePublisher(own, lambda: made.text)
    made.text = "1"
    with waiting.beside(made):
        made.changed()
        yield made


def wrote(publisher, text):
    publisher.text = text
    publisher.changed()
    return publisher.wait(waiting.PROMPT)


def test_annotation_is_written_only_on_change(publisher, cluster):
    assert publisher.wait(waiting.PROMPT)
    assert cluster.text == "1"
    assert wrote(publisher, "1")
    assert cluster.times_published() == 1
    assert wrote(publisher, "2")
    assert cluster.text == "2"
    assert cluster.times_published() == 2


def test_nothing_is_written_before_the_devices_are_known(own, cluster):
    seen = []

    def text():
        assert seen, "asked before anything was seen"
        return "1"

    made = node_annotation.NodePublisher(own, text)
    written = {names.NODE_DEVICES_ANNOTATION: "1"}
    other = node_annotation.NodePublisher(own, lambda: "1")
    with waiting.beside(made), waiting.beside(other):
        other.changed()
        assert other.wait(waiting.PROMPT)  # long enough for the first to write, too
        waiting.wait_until(lambda: own.metadata().get("annotations") == written)
        seen.append(1)
        made.changed()
        assert made.wait(waiting.PROMPT)
    assert cluster.times_published() == 1


def test_isolation_of_the_devices_is_an_annotation_of_its_own(own, cluster):
    """`kubectl describe node` shows it."""
    means = ["gpu0=quota"]
    made = node_annotation.NodePublisher(own, lambda: "1", isolation=lambda: means[-1])
    with waiting.beside(made):
        made.changed()
        assert made.wait(30)
        waiting.wait_until(lambda: own.metadata().get("annotations"))
        assert own.metadata()["annotations"]["pyvgpu.io/device-isolation"] == "gpu0=quota"
        means.append("gpu0=hardware")
        made.changed()
        assert made.wait(30)
        made.changed()
        assert made.wait(30)
    found = cluster.api.read(f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]
    assert found["pyvgpu.io/device-isolation"] == "gpu0=hardware"
    assert cluster.times_published() == 2


def test_restarted_agent_does_not_rewrite_the_annotation(publisher, own, cluster):
    assert publisher.wait(waiting.PROMPT)
    own.sync()
    again = node_annotation.NodePublisher(own, lambda: "1")
    with waiting.beside(again):
        again.changed()
        assert again.wait(waiting.PROMPT)
    assert cluster.times_published() == 1


def test_recreated_node_gets_the_annotation_again(own, cluster, monkeypatch):
    monkeypatch.setattr(node_annotation, "POLL_SECONDS", 0.05)
    made = node_annotation.NodePublisher(own, lambda: "1")
    with waiting.beside(made):
        made.changed()
        assert made.wait(waiting.PROMPT)
        cluster.forget_published()
        cluster.api.wait_for("PATCH", f"/api/v1/nodes/{NODE}", 2)
    assert cluster.text == "1"


def test_starts_do_not_wait_for_a_failing_server(publisher, cluster):
    assert publisher.wait(waiting.PROMPT)
    cluster.api.refusing["PATCH"] = [403] * 10_000
    assert not wrote(publisher, "2")
    cluster.api.refusing = {}
    waiting.wait_until(lambda: cluster.text == "2")


def test_annotation_has_devices_and_local_placements(kubelet, tmp_path):
    has = (*grant_room.devices(1, cordoned=True), *grant_room.devices(2, unhealthy="Xid 79")[1:])
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as room:
        one = kubelet.admit(pod("p", container("a", 30, 4)))
        grant = room.start(one, "a")
        whole = kubelet.admit(pod("q", container("a", 100, 0)))
        room.start(whole, "a")

        def lower(it):
            share = datatypes.NodeShare(it.shares[0].uuid, 10, UNIT)
            policy = quota.TimePolicy.HARD
            return type(it)(
                **{f: getattr(it, f) for f in ("id", "vcore_ids", "created", "owner")},
                vmemory_ids=it.vmemory_ids,
                shares=(share,),
                policy=policy,
            )

        room.grant_manager.change(grant.id, lower)  # it keeps its ids
        known = room.grant_manager.known.values()
        text = node_annotation.text_of(UNIT, has, {"GPU-0": 3}, known)
    document = json.loads(text)
    json_schema.check(schemas.NODE_DEVICES, document)
    assert [
        (device["minor"], device["cordoned"], device["health"]) for device in document["devices"]
    ] == [
        (3, True, ""),
        (None, False, "Xid 79"),
    ]
    assert document["grants"] == {
        one.uid: {"a": [{"uuid": "GPU-0", "vcore": 30, "bytes": 4 * UNIT}]},
        whole.uid: {"a": [{"uuid": "GPU-1", "vcore": 100, "bytes": 16 * UNIT}]},
    }


@pytest.mark.slow
def test_container_starts_after_its_grant_is_published(node, cluster):
    kubelet = node.kubelet
    node.start("--kubeconfig", cluster.kubeconfig, "--compute-class", "t4=slow")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, {})
    uuid = node.quota(kubelet.start_container(one, "a"))[2]
    found = cluster.published
    assert found.placed == {one.uid: {"a": (datatypes.NodeShare(uuid, 30, 2 * UNIT),)}}
    assert found.memory_unit == UNIT
    machine = node.machine.devices
    assert [device.uuid for device in found.devices] == [own.uuid for own in machine]
    assert [device.memory_bytes for device in found.devices] == [
        own.memory_bytes for own in machine
    ]
    assert {device.compute_class for device in found.devices} == {"slow"}
    assert found.minors == {device.uuid: index for index, device in enumerate(machine)}
    kubelet.remove(one)
    node.until(lambda: not cluster.published.placed)
