"""One watch of the node serves all components."""

import contextlib

import pytest
import waiting
from cluster_of_one import NODE

from pyvgpu.deviceplugin.cluster import own_node
from pyvgpu.kube import apiserver

PATH = f"/api/v1/nodes/{NODE}"


def test_change_is_seen_through_the_watch(own, cluster):
    cluster.api.wait_for("WATCH", "/api/v1/nodes")
    before = len(cluster.api.asked)
    node = cluster.api.read(PATH)
    cluster.api.put(PATH, {**node, "status": {"capacity": {"cpu": "8"}, "images": []}})
    waiting.wait_until(lambda: own.capacity() == {"cpu": "8"})
    assert (own.metadata()["name"], own.uid) == (NODE, "uid-of-node")
    assert len(cluster.api.asked) == before


def test_own_write_is_seen(own, cluster):
    own.write({"annotations": {"a": "b"}})
    waiting.wait_until(lambda: own.metadata().get("annotations") == {"a": "b"})


def test_last_seen_node_is_kept_while_the_server_is_unavailable(own, cluster):
    cluster.api.go_down()
    with pytest.raises(apiserver.ServerError):
        own.write({"annotations": {"a": "b"}})
    assert own.metadata()["name"] == NODE


def test_unread_node_raises_an_error(cluster):
    found = own_node.OwnNode(cluster.connection, NODE)
    with pytest.raises(apiserver.ServerError, match="node node-1 has not been read yet"):
        found.metadata()
    cluster.api.delete(PATH)
    found.sync()
    with pytest.raises(apiserver.ServerError, match="there is no node node-1"):
        found.capacity()
    assert found.uid == ""


def test_watch_stops_at_once(cluster):
    found = own_node.OwnNode(cluster.connection, NODE)
    with contextlib.ExitStack() as stack:
        stack.enter_context(waiting.beside(found))  # joins its thread at the end
        cluster.api.wait_for("WATCH", "/api/v1/nodes")
