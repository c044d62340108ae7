"""A fresh node's startup taint is removed once the agent is ready."""

import pytest
import waiting
from cluster_of_one import NODE

from pyvgpu.deviceplugin.cluster import own_node, startup_taint
from pyvgpu.kube import apiserver

PATH = f"/api/v1/nodes/{NODE}"
KEY = "pyvgpu.io/starting"
OURS = {"key": KEY, "effect": "NoSchedule"}
OTHER = {"key": "dedicated", "value": "gpu", "effect": "NoExecute"}


@pytest.fixture
def tainted(own, cluster):
    node = cluster.api.read(PATH)
    cluster.api.put(PATH, {**node, "spec": {"podCIDR": "10.0.0.0/24", "taints": [OURS, OTHER]}})
    waiting.wait_until(lambda: len(own.taints()) == 2)
    return own


def spec(cluster):
    return cluster.api.read(PATH)["spec"]


def test_taint_stays_until_the_agent_is_ready(tainted, cluster):
    trouble = ["its plugins are not registered"]
    removing = startup_taint.StartupTaint(tainted, KEY, lambda: trouble[0])
    removing.poll()
    assert spec(cluster)["taints"] == [OURS, OTHER]
    trouble[0] = ""
    removing.poll()
    assert spec(cluster) == {"podCIDR": "10.0.0.0/24", "taints": [OTHER]}


def test_node_without_the_taint_is_not_written(own, cluster):
    before = list(cluster.api.asked)
    startup_taint.StartupTaint(own, KEY, str).poll()
    assert [call for call in cluster.api.asked if call not in before] == []


def test_a_taint_added_meanwhile_is_not_lost(tainted, cluster):
    stale = own_node.OwnNode(cluster.connection, NODE)  # without a watch
    stale.sync()
    more = {"key": "more", "effect": "NoSchedule"}
    node = cluster.api.read(PATH)
    node["spec"]["taints"].append(more)
    cluster.api.put(PATH, node)
    with pytest.raises(apiserver.ServerError) as refused:
        startup_taint.StartupTaint(stale, KEY, str).poll()
    assert refused.value.outdated
    assert spec(cluster)["taints"] == [OURS, OTHER, more]
    stale.sync()
    startup_taint.StartupTaint(stale, KEY, str).poll()
    assert spec(cluster)["taints"] == [OTHER, more]
