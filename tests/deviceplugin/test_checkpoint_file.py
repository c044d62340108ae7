"""Kubelet's own checkpoint is read in each of its formats, and malformed files are reported."""

import base64
import json
import os

import pytest

from pyvgpu import names
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, plugin_messages
from pyvgpu.deviceplugin.plugin import plugin_server

GRANT = "0123456789abcdef"
ANSWER = plugin_messages.AllocateResponse(
    {names.GRANT_KIND: GRANT}, (f"{names.GRANT_KIND}={GRANT}",)
)


def entry(device_ids, resource=names.VCORE_RESOURCE):
    return {
        "PodUID": "u",
        "ContainerName": "a",
        "ResourceName": resource,
        "DeviceIDs": device_ids,
        "AllocResp": base64.b64encode(
            plugin_server.as_message(ANSWER).SerializeToString()
        ).decode(),
    }


def document(*entries):
    return {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"Data": document(entry({"-1": ["c1"], "0": ["c2"]}))}, id="by NUMA node"),
        pytest.param({"Data": document(entry(["c1", "c2"]))}, id="a list"),
        pytest.param(
            {**document(entry(["c1", "c2"])), "Checksum": 7}, id="without the outer part"
        ),
    ],
)
def test_every_checkpoint_format_is_read(tmp_path, content):
    (tmp_path / checkpoint_file.FILE).write_text(json.dumps(content))
    held = frozenset({"c1", "c2"})
    assert checkpoint_file.CheckpointFile(tmp_path).read() == (
        checkpoint_file.CheckpointEntry("u", "a", device_ids.ResourceKind.VCORE, held, GRANT),
    )


def test_entries_are_indexed_by_pod_and_id():
    def one(uid, kind, *held):
        return checkpoint_file.CheckpointEntry(uid, "a", kind, frozenset(held), "")

    vcore, vmemory = device_ids.ResourceKind.VCORE, device_ids.ResourceKind.VMEMORY
    found = checkpoint_file.Entries(
        [one("u", vcore, "1", "2"), one("v", vcore, "2"), one("u", vmemory, "3")]
    )
    assert found.of_pod("u") == [found[0], found[2]]
    assert not found.of_pod("w")
    assert found.pods_with(vcore, ["1"]) == {"u"}
    assert found.pods_with(vcore, ["2", "9"]) == {"u", "v"}
    assert not found.pods_with(vmemory, ["2"])


def test_answers_are_parsed_once(tmp_path, monkeypatch):
    read = checkpoint_file.CheckpointFile(tmp_path)
    for count in (1, 2):
        content = {"Data": document(*(entry([f"c{number}"]) for number in range(count)))}
        (tmp_path / checkpoint_file.FILE).write_text(json.dumps(content))
        assert [held.grant for held in read.read()] == [GRANT] * count
        monkeypatch.setattr(checkpoint_file.base64, "b64decode", None)  # any call fails


def test_other_resources_are_skipped(tmp_path):
    content = document(entry(["x"], "nvidia.com/gpu"), entry(["m1"], names.VMEMORY_RESOURCE))
    (tmp_path / checkpoint_file.FILE).write_text(json.dumps({"Data": content}))
    assert [held.kind for held in checkpoint_file.CheckpointFile(tmp_path).read()] == [
        device_ids.ResourceKind.VMEMORY
    ]


def test_file_without_pods_is_read(tmp_path):
    content = {"PodDeviceEntries": None, "RegisteredDevices": {}}
    (tmp_path / checkpoint_file.FILE).write_text(json.dumps({"Data": content}))
    assert checkpoint_file.CheckpointFile(tmp_path).read() == ()


def test_replaced_file_is_read_again(tmp_path):
    read = checkpoint_file.CheckpointFile(tmp_path)
    for name in ("c1", "c2"):
        draft = tmp_path / "draft"
        draft.write_text(json.dumps({"Data": document(entry([name]))}))
        os.utime(draft, (0, 0))  # the clock was set back meanwhile
        draft.replace(tmp_path / checkpoint_file.FILE)
        assert read.read()[0].ids == {name}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param('{"Data": {"PodDevice', id="cut short"),
        pytest.param("[]", id="a list"),
        pytest.param('{"Data": {"PodDeviceEntries": [7]}}', id="no entry"),
        pytest.param(
            json.dumps({"Data": document({"ResourceName": "pyvgpu.io/vcore"})}), id="bare"
        ),
        pytest.param(
            json.dumps({"Data": document({**entry(["c1"]), "AllocResp": "!"})}), id="no answer"
        ),
    ],
)
def test_unreadable_checkpoint_is_reported(tmp_path, content):
    if content is not None:
        (tmp_path / checkpoint_file.FILE).write_text(content)
    with pytest.raises(checkpoint_file.StateError, match="checkpoint cannot be read"):
        checkpoint_file.CheckpointFile(tmp_path).read()
