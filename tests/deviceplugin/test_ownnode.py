"""The node is read once for all who follow it."""

import pytest
from cluster_of_one import NODE

from pyvgpu.deviceplugin import apiserver, ownnode

PATH = f"/api/v1/nodes/{NODE}"


@pytest.fixture
def own(cluster):
    return ownnode.OwnNode(cluster.connection, NODE)


def test_who_takes_what_another_has_just_read_asks_nobody(own, cluster):
    first = own.metadata()
    assert own.metadata(60.0) is first
    assert cluster.api.asked.count(("GET", PATH)) == 1
    assert own.metadata() == first
    assert cluster.api.asked.count(("GET", PATH)) == 2


def test_what_is_older_is_read_again(own, cluster):
    own.metadata()
    own.write({"annotations": {"a": "b"}})
    assert "annotations" not in own.metadata(60.0)
    assert own.metadata(0.0)["annotations"] == {"a": "b"}


def test_what_was_read_is_not_taken_for_new_while_nobody_answers(own, cluster):
    own.metadata()
    cluster.api.go_down()
    with pytest.raises(apiserver.ServerError):
        own.metadata()
    assert own.metadata(60.0)["name"] == NODE
