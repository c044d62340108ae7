"""The administrator's annotation of a node cordons devices, also while nobody can be asked."""

import json

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin import apiserver, cordons, ownnode

A, B = "GPU-a", "GPU-b"


class Server:
    """An API server with one node."""

    def __init__(self):
        self.annotations = None
        self.away = False

    def call(self, method, path, query, accept):
        assert (method, path) == ("GET", "/api/v1/nodes/node-1")
        assert "PartialObjectMetadata;" in accept
        if self.away:
            raise apiserver.ServerError("GET: nobody answers")
        return {"metadata": {"name": "node-1", "annotations": self.annotations}}


@pytest.fixture
def server():
    return Server()


def follower(server, kept):
    return cordons.Follower(ownnode.OwnNode(server, "node-1"), lambda: [A, B], kept.follow)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (A, {A}),
        (f"{A},{B}", {A, B}),
        (f" {A} ,\n{B}, ", {A, B}),
    ],
)
def test_the_annotation_is_uuids(text, expected):
    assert cordons.read(text) == expected


def test_the_annotation_is_followed_beside_orders(server, tmp_path):
    kept = cordons.Cordons(tmp_path)
    look = follower(server, kept).look
    look()
    assert kept.uuids == frozenset()
    kept.change(A, cordoned=True)
    server.annotations = {"pyvgpu.io/cordoned": f"{A},{B}"}
    look()
    assert kept.uuids == {A, B}
    kept.change(A, cordoned=False)
    assert kept.uuids == {A, B}  # the annotation still says so
    server.annotations = {"other": "x"}
    look()
    assert kept.uuids == frozenset()


def test_it_lasts_while_the_server_is_away(server, tmp_path):
    server.annotations = {"pyvgpu.io/cordoned": B}
    follower(server, cordons.Cordons(tmp_path)).look()
    server.away = True
    again = cordons.Cordons(tmp_path)
    assert again.uuids == {B}
    rounds = iter([False, True])
    follower(server, again).run(lambda _: next(rounds))
    assert again.uuids == {B}


def test_a_device_that_the_node_has_not_is_said_once_with_those_it_has(server, tmp_path, caplog):
    server.annotations = {"pyvgpu.io/cordoned": "GPU-x"}
    one = follower(server, cordons.Cordons(tmp_path))
    one.look()
    one.look()
    (said,) = caplog.messages
    assert said == "pyvgpu.io/cordoned 'GPU-x': this node has no device GPU-x; valid: GPU-a, GPU-b"


@pytest.mark.parametrize("name", [cordons.ORDERED, cordons.NOTED])
def test_what_cannot_be_read_is_not_forgotten(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"a": 1}))
    with pytest.raises(errors.DataError, match="cannot be read"):
        cordons.Cordons(tmp_path)
