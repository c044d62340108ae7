"""Annotations of agents and the scheduler: damaged or forged ones are refused."""

import contextlib
import dataclasses
import json

import json_schema
import mig_profiles
import pytest
from allocator_nodes import GIB, cube_mesh, device, pcie, uuid
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.allocator import annotations, datatypes, schemas

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
CHOICE = annotations.DeviceChoice(
    "uid-1",
    "node-1",
    {
        "init": (datatypes.NodeShare(uuid(0), 50, 8 * GIB),),
        "main": (datatypes.NodeShare(uuid(0), 30, GIB), datatypes.NodeShare(uuid(1), 30, GIB)),
    },
)
PUBLISHED = annotations.Published(
    256 << 20,
    (
        device(0, cordoned=True, numa=1),
        device(1, unhealthy="Xid 79", allocated_by="dra", least_bytes=5),
    ),
    {uuid(0): 4},
    {"uid-9": {"main": (datatypes.NodeShare(uuid(1), 20, GIB),)}},
)


def check(schema, text):
    json_schema.check(schema, json.loads(text))


@pytest.mark.parametrize(
    "published",
    [
        PUBLISHED,
        annotations.Published(1, ()),
        annotations.Published(1, cube_mesh()),
        annotations.Published(1, pcie(16)),
        annotations.Published(1, (device(0, mps=True), device(1, mps=True, unhealthy="Xid 79"))),
        annotations.Published(
            1,
            (mig_profiles.gpu(taken=("1g.10gb@6",)),),
            placed={"uid": {"main": (datatypes.NodeShare(uuid(0), 12, GIB, "2g.20gb@4"),)}},
        ),
    ],
)
def test_node_devices_round_trip(published):
    text = annotations.publish(published)
    check(schemas.NODE_DEVICES, text)
    assert annotations.read_node(text) == published


def test_fields_of_other_versions_are_ignored_and_missing_ones_have_defaults():
    known = {"uuid": uuid(0), "index": 0, "bytes": 80 * GIB}
    document = {"v": 1, "memory_unit": 1, "devices": [{**known, "later": {}}], "later": [1]}
    found = annotations.read_node(json.dumps(document))
    assert found == annotations.Published(1, (datatypes.NodeDevice(uuid(0), 0, 80 * GIB),))


def test_sixteen_devices_use_a_fraction_of_an_annotation():
    assert len(annotations.publish(annotations.Published(1, pcie(16)))) < annotations.LONGEST / 16


def test_a_choice_opens_for_its_pod_and_node():
    text = annotations.seal(CHOICE, KEY)
    check(schemas.DEVICES, text)
    assert annotations.open_sealed(text, [KEY], "uid-1", "node-1") == CHOICE
    assert annotations.open_sealed(text, [OTHER_KEY, KEY], "uid-1", "node-1") == CHOICE


@pytest.mark.parametrize(("uid", "node"), [("uid-2", "node-1"), ("uid-1", "node-2")])
def test_a_choice_for_another_pod_or_node_is_refused(uid, node):
    text = annotations.seal(CHOICE, KEY)
    with pytest.raises(errors.DataError, match="is for pod uid-1 on node-1, but this is"):
        annotations.open_sealed(text, [KEY], uid, node)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(uid="uid-2"),
        lambda d: d["containers"]["main"][0].update(vcore=99),
        lambda d: d["containers"]["main"][0].update(vcore=30.0),
        lambda d: d["containers"].update(more=[]),
        lambda d: d.update(more=1),
        lambda d: d.pop("sig"),
        lambda d: d.update(sig=""),
        lambda d: d.update(sig=7),
        lambda d: d.update(sig="ä" * 64),
        lambda d: d.update(sig=d["sig"].upper()),
    ],
)
def test_a_choice_changed_after_sealing_is_refused(change):
    document = json.loads(annotations.seal(CHOICE, KEY))
    change(document)
    with pytest.raises(errors.DataError, match="not sealed by this cluster's scheduler"):
        annotations.open_sealed(json.dumps(document), [KEY], document.get("uid", ""), "node-1")


def test_a_choice_sealed_with_another_key_is_refused():
    text = annotations.seal(CHOICE, OTHER_KEY)
    for keys in ([KEY], []):
        with pytest.raises(errors.DataError, match="not sealed"):
            annotations.open_sealed(text, keys, "uid-1", "node-1")


def test_a_short_key_is_refused():
    with pytest.raises(errors.DataError, match=r"must have at least 32, such as from `head -c 32"):
        annotations.seal(CHOICE, b"secret")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("[]", "is not an object"),
        ("nonsense", "is damaged"),
        ("[" * 100_000, "is damaged"),
        (" " * (annotations.LONGEST + 1), "too long"),
        ("{}", "has version None, this pyvgpu supports 1"),
        ('{"v": 2}', "has version 2"),
        ('{"v": true}', "has version True"),
        ('{"v": "1"}', "has version '1'"),
    ],
)
def test_malformed_annotations_are_refused(text, said):
    with pytest.raises(errors.DataError, match=f"pyvgpu.io/node-devices: .*{said}"):
        annotations.read_node(text)
    with pytest.raises(errors.DataError, match=f"pyvgpu.io/devices: .*{said}"):
        annotations.open_sealed(text, [KEY], "uid", "node")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("memory_unit"),
        lambda d: d.update(memory_unit=0),
        lambda d: d.update(devices={}),
        lambda d: d.update(devices=[None]),
        lambda d: d.update(grants=[]),
        lambda d: d["devices"][1].update(index=0),
        lambda d: d["devices"][1].update(uuid=uuid(0)),
        lambda d: d["devices"][0].update(bytes=-1),
        lambda d: d["devices"][0].update(bytes="1"),
        lambda d: d["devices"][0].update(cordoned="no"),
        lambda d: d["devices"][0].update(health=None),
        lambda d: d["devices"][0].update(model="a\x1b[2J"),
        lambda d: d["devices"][0].update(links={"7": [1, 0]}),
        lambda d: d["devices"][0].update(links={"1": [9, 0]}),
        lambda d: d["devices"][0].update(links={"1": [1]}),
        lambda d: d["devices"][0].update(mps=1),
        lambda d: d["grants"]["uid-9"]["main"][0].update(vcore=101),
        lambda d: d["grants"]["uid-9"]["main"][0].pop("uuid"),
    ],
)
def test_damaged_node_devices_are_refused(change):
    document = json.loads(annotations.publish(PUBLISHED))
    change(document)
    with pytest.raises(errors.DataError, match="pyvgpu.io/node-devices: is damaged"):
        annotations.read_node(json.dumps(document))


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(device(0, mps=True), id="MPS"),
        pytest.param(mig_profiles.gpu(), id="MIG instances"),
    ],
)
def test_a_reader_that_does_not_know_the_isolation_sees_an_unhealthy_device(published):
    document = json.loads(annotations.publish(annotations.Published(1, (published,))))
    (found,) = document["devices"]
    for field in ("mps", "mig", "taken"):
        found.pop(field, None)
    (read,) = annotations.read_node(json.dumps(document)).devices
    assert read.unhealthy


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text() | st.booleans(), st.lists), st.data())
def test_arbitrary_values_raise_only_data_errors(value, data):
    document = json.loads(annotations.publish(PUBLISHED))
    where = data.draw(st.sampled_from([*document, "devices.0", "grants.uid-9"]))
    if "." in where:
        first, second = where.split(".")
        document[first][int(second) if second.isdecimal() else second] = value
    else:
        document[where] = value
    with contextlib.suppress(errors.DataError):
        annotations.read_node(json.dumps(document))


def test_readers_without_instances_see_their_gpu_as_unhealthy():
    text = annotations.publish(annotations.Published(1, (mig_profiles.gpu(),)))
    (found,) = json.loads(text)["devices"]
    assert found["health"] == "it is for MIG instances that pods request"
    assert annotations.read_node(text).devices[0].unhealthy == ""
    broken = dataclasses.replace(mig_profiles.gpu(), unhealthy="Xid 79")
    text = annotations.publish(annotations.Published(1, (broken,)))
    assert annotations.read_node(text).devices[0].unhealthy == "Xid 79"


@pytest.mark.parametrize(
    ("field", "value"),
    [("starts", [65]), ("size", 0), ("size", 65), ("sms", 0), ("starts", 3), ("name", 5)],
)
def test_damaged_profile_is_refused(field, value):
    document = json.loads(annotations.publish(annotations.Published(1, (mig_profiles.gpu(),))))
    document["devices"][0]["mig"][0][field] = value
    with pytest.raises(errors.DataError, match="is damaged"):
        annotations.read_node(json.dumps(document))


def test_sealed_placement_is_part_of_the_choice():
    share = datatypes.NodeShare(uuid(0), 12, GIB, "1g.10gb@6")
    choice = annotations.DeviceChoice("uid-1", "node-1", {"main": (share,)})
    text = annotations.seal(choice, KEY)
    check(schemas.DEVICES, text)
    assert annotations.open_sealed(text, [KEY], "uid-1", "node-1") == choice
    with pytest.raises(errors.DataError, match="not sealed"):
        annotations.open_sealed(text.replace("@6", "@5"), [KEY], "uid-1", "node-1")
