"""The node's annotation cordons devices, even while the API server is unavailable."""

import json

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin.devices import cordoned_devices
from pyvgpu.kube import apiserver

A, B = "GPU-a", "GPU-b"


class Node:
    """A node, as last seen or never seen."""

    def __init__(self):
        self.annotations = None
        self.away = False

    def metadata(self):
        if self.away:
            raise apiserver.ServerError("it has not been read yet")
        return {"name": "node-1", "annotations": self.annotations}


@pytest.fixture
def seen():
    return Node()


def follower(seen, kept):
    return cordoned_devices.CordonWatch(seen, lambda: [A, B], kept.follow)


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


def test_annotation_and_orders_are_independent(seen, tmp_path):
    kept = cordoned_devices.Cordons(tmp_path)
    poll = follower(seen, kept).poll
    poll()
    assert kept.uuids == frozenset()
    kept.change(A, cordoned=True)
    seen.annotations = {"pyvgpu.io/cordoned": f"{A},{B}"}
    poll()
    assert kept.uuids == {A, B}
    kept.change(A, cordoned=False)
    assert kept.uuids == {A, B}  # the annotation still says so
    seen.annotations = {"other": "x"}
    poll()
    assert kept.uuids == frozenset()


def test_cordon_lasts_while_the_node_cannot_be_read(seen, tmp_path):
    seen.annotations = {"pyvgpu.io/cordoned": B}
    follower(seen, cordoned_devices.Cordons(tmp_path)).poll()
    seen.away = True
    again = cordoned_devices.Cordons(tmp_path)
    assert again.uuids == {B}
    rounds = iter([False, True])
    follower(seen, again).run(lambda _: next(rounds))
    assert again.uuids == {B}


def test_unknown_device_is_logged_once_with_valid_ones(seen, tmp_path, caplog):
    seen.annotations = {"pyvgpu.io/cordoned": "GPU-x"}
    one = follower(seen, cordoned_devices.Cordons(tmp_path))
    one.poll()
    one.poll()
    (said,) = caplog.messages
    assert said == "pyvgpu.io/cordoned 'GPU-x': this node has no device GPU-x; valid: GPU-a, GPU-b"


@pytest.mark.parametrize("name", [cordoned_devices.ORDERED, cordoned_devices.NOTED])
def test_unreadable_cordon_file_is_refused(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"a": 1}))
    with pytest.raises(errors.DataError, match="cannot be read"):
        cordoned_devices.Cordons(tmp_path)
