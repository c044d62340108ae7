"""The node's annotation and `pyvgpu cordon` cordon devices without the API server, too."""

import json

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin.devices import cordoned_devices
from pyvgpu.kube import apiserver

A, B = "GPU-a", "GPU-b"


class Node:
    """The agent's copy of its Node object, which may not have been read yet."""

    def __init__(self):
        self.annotations = None
        self.unread = False

    def metadata(self):
        if self.unread:
            raise apiserver.ServerError("it has not been read yet")
        return {"name": "node-1", "annotations": self.annotations}


@pytest.fixture
def node():
    return Node()


def watch_of(node, cordons):
    return cordoned_devices.CordonWatch(node, lambda: [A, B], cordons.follow)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (A, {A}),
        (f"{A},{B}", {A, B}),
        (f" {A} ,\n{B}, ", {A, B}),
    ],
)
def test_annotation_is_parsed_into_uuids(text, expected):
    assert cordoned_devices.read(text) == expected


def test_annotation_and_command_are_independent(node, tmp_path):
    cordons = cordoned_devices.Cordons(tmp_path)
    poll = watch_of(node, cordons).poll
    poll()
    assert cordons.uuids == frozenset()
    cordons.change(A, cordoned=True)
    node.annotations = {"pyvgpu.io/cordoned": f"{A},{B}"}
    poll()
    assert cordons.uuids == {A, B}
    cordons.change(A, cordoned=False)
    assert cordons.uuids == {A, B}  # the annotation still says so
    node.annotations = {"other": "x"}
    poll()
    assert cordons.uuids == frozenset()


def test_cordon_lasts_while_the_node_cannot_be_read(node, tmp_path):
    node.annotations = {"pyvgpu.io/cordoned": B}
    watch_of(node, cordoned_devices.Cordons(tmp_path)).poll()
    node.unread = True
    again = cordoned_devices.Cordons(tmp_path)
    assert again.uuids == {B}
    rounds = iter([False, True])
    watch_of(node, again).run(lambda _: next(rounds))
    assert again.uuids == {B}


def test_unknown_device_is_logged_once_with_valid_ones(node, tmp_path, caplog):
    node.annotations = {"pyvgpu.io/cordoned": "GPU-x"}
    watch = watch_of(node, cordoned_devices.Cordons(tmp_path))
    watch.poll()
    watch.poll()
    (line,) = caplog.messages
    assert line == "pyvgpu.io/cordoned 'GPU-x': this node has no device GPU-x; valid: GPU-a, GPU-b"


@pytest.mark.parametrize("name", [cordoned_devices.ORDERED, cordoned_devices.NOTED])
def test_unreadable_cordon_file_is_refused(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"a": 1}))
    with pytest.raises(errors.DataError, match="cannot be read"):
        cordoned_devices.Cordons(tmp_path)
