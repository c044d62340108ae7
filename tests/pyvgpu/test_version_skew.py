"""Records that programs of different versions exchange during an upgrade or a rollback.

Every record is read as a later version would write it, with fields that this one does not know,
and as an earlier one would have written it, without the fields that have defaults.
"""

import copy
import dataclasses
import datetime
import json
import tempfile
from pathlib import Path

import pod_objects as make
import pytest

from pyvgpu import oversubscription
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.claims import claim_totals
from pyvgpu.controller.sidecar import exit_reports, nodes, records, sidecar_pods, swaps
from pyvgpu.controller.sidecar.termination_methods import Method
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import grant_log
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids
from pyvgpu.machine import holders, memory_limit, move_record, tenant_record
from pyvgpu.volumes import manifest, node_mirror

KEY = b"k" * 32
GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-000000000000"
SHARE = datatypes.NodeShare(UUID, 30, GIB)
AT = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)


def node_devices():
    made = datatypes.NodeDevice(UUID, 0, 80 * GIB, "", least_bytes=1)
    return json.loads(
        annotations.publish(
            annotations.Published(1 << 28, (made,), {}, {"uid": {"main": (SHARE,)}})
        )
    )


def devices():
    text = annotations.seal(annotations.DeviceChoice("uid", "node", {"main": (SHARE,)}), KEY)
    return json.loads(text)


def open_devices(document):
    """Read a choice that its writer has sealed, whatever its fields."""
    del document["sig"]
    document["sig"] = annotations._signature(document, KEY)
    return annotations.open_sealed(json.dumps(document), [KEY], "uid", "node")


def stop_record():
    entry = records.ActionRecord(Method.HYBRID, "containerd://log", tried=frozenset({Method.STOP}))
    made = records.PodRecord("uid-1", AT.isoformat(), 1, AT, 35.0, {"log": entry})
    return json.loads(records.write(made))


def read_stop_record(document):
    noted = {"annotations": {"pyvgpu.io/sidecar-stop": json.dumps(document)}}
    return records.read_any(sidecar_pods.read(make.pod(metadata=noted)))


def exit_report():
    end = exit_reports.End("containerd://main", 0, AT)
    return json.loads(exit_reports.write({"a/b": exit_reports.ExitReport("uid", {"main": end})}))


def grant():
    owner = grants.Owner("uid", "team", "pod", "main")
    ids = frozenset({"c0"}), 17.5, owner, frozenset({"m0"})
    return grants.dump(grants.Grant("0" * 16, *ids, (SHARE,)))


def reservation():
    return dataclasses.asdict(holders.Holder("train", "python train.py", 30))


def limit():
    return json.loads(memory_limit.Limit(("/sys/fs/cgroup/a",), (GIB,), "").dump())


def tenant():
    return json.loads(
        tenant_record.dump(tenant_record.TenantRecord(oversubscription.MoveRules(), 5.0))
    )


def moves():
    return dataclasses.asdict(move_record.MoveRecord(suspensions=1))


def swapped():
    return {"log": {"image": "shipper:1", "program": "/bin/ship", "pull": True}}


def read_swapped(document):
    noted = {"annotations": {"pyvgpu.io/swapped": json.dumps(document)}}
    return swaps.asked_for(sidecar_pods.read(make.pod(metadata=noted)))


def kubelets_checkpoint():
    answer = {"PodUID": "uid", "ContainerName": "main", "AllocResp": ""}
    devices = {"ResourceName": device_ids.OURS[0].name, "DeviceIDs": {"-1": ["c0"]}}
    return {"Data": {"PodDeviceEntries": [{**answer, **devices}]}, "Checksum": 1}


def from_file(read, name):
    """Return a reader of a document in the file *name* of a folder, which *read* gets."""

    def reader(document):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, name).write_text(json.dumps(document))
            return read(Path(folder))

    return reader


def mirror_manifest():
    entries = {"lib": manifest.TreeEntry("lib64"), "a": manifest.TreeEntry(None, 1, 2, 3, "d")}
    found = {path: dataclasses.asdict(entry) for path, entry in entries.items()}
    return {"layout": 1, "entries": found}


def read_mirror_state(folder):
    return node_mirror.NodeMirror(folder, folder / "shim").state()


def mirror_state():
    found = {"driver": "present", "release": "550.54", "tree": "550.54-1", "reason": ""}
    return {"layout": 1, "since": "now", **found, "remarks": ["left out"], "specification": ""}


# For each record: a document, its reader, and the fields without which it is read just as well.
RECORDS = {
    "pyvgpu.io/node-devices": (
        node_devices,
        lambda document: annotations.read_node(json.dumps(document)),
        {
            "devices": {
                "minor", "least", "model", "class", "numa", "links", "health", "cordoned",
                "allocatedBy",
            }
        },
    ),
    "pyvgpu.io/devices": (devices, open_devices, {}),
    "pyvgpu.io/sidecar-stop": (
        stop_record,
        read_stop_record,
        {"containers.log": {"graceSeconds", "kill", "order", "command"}},
    ),
    "pyvgpu.io/ended": (
        exit_report,
        lambda document: exit_reports.read(json.dumps(document)),
        {},
    ),
    "grant": (
        grant,
        grants.load,
        {"": {"policy", "ceiling", "annotated", "priority", "prioritized", "chosen", "claim"}},
    ),
    "pyvgpu.io/swapped": (swapped, read_swapped, {"log": {"program", "pull"}}),
    "reservation": (
        reservation,
        lambda text: holders.parse_holder(json.dumps(text).encode(), Path("reservation.json")),
        {},
    ),
    "driver limit": (limit, lambda document: memory_limit.load(json.dumps(document).encode()), {}),
    "tenant of oversubscription": (
        tenant,
        lambda document: tenant_record.load(json.dumps(document).encode()),
        {"": {"host_memory"}},
    ),
    "moves of a run": (
        moves,
        lambda document: move_record.load(json.dumps(document).encode()),
        {},
    ),
    "kubelet's checkpoint": (
        kubelets_checkpoint,
        from_file(
            lambda folder: [*checkpoint_file.CheckpointFile(folder).read()], checkpoint_file.FILE
        ),
        {},
    ),
    "manifest of a mirror": (
        mirror_manifest,
        from_file(manifest.Manifest.read, manifest.FILE),
        {"entries.lib": {"inode", "size", "mtime_ns", "digest"}},
    ),
    "state of a mirror": (
        mirror_state,
        from_file(read_mirror_state, node_mirror.STATE),
        {"": {"since", "specification", "reason"}},
    ),
}  # fmt: skip
EVERY = pytest.mark.parametrize(
    ("document", "read", "optional"),
    [pytest.param(made(), *more, id=name) for name, (made, *more) in RECORDS.items()],
)


def at(document, path):
    """Return the objects at a path; an element of it may be a list, which stands for its items."""
    found = [document]
    for name in filter(None, path.split(".")):
        found = [below[name] for below in found]
        found = [item for below in found for item in (below if type(below) is list else [below])]
    return found


def structures(thing, depth=0):
    """Yield each object with fixed fields; not maps, whose keys are data."""
    maps = ("grants", "containers", "links", "mains", "entries")
    if type(thing) is dict:
        yield thing
        for name, below in thing.items():
            inner = below.values() if name in maps and type(below) is dict else [below]
            for one in inner:
                yield from structures(one)
    elif type(thing) is list:
        for one in thing:
            yield from structures(one)


@EVERY
def test_unknown_fields_of_a_later_version_are_ignored(document, read, optional):
    later = copy.deepcopy(document)
    found = [*structures(later)] if "a/b" not in later else [*structures(later["a/b"])]
    for thing in found:
        if "uid" in thing or len(thing) > 1:  # not a map of a pod's containers
            thing["laterField"] = {"any": [1]}
    assert "laterField" in json.dumps(later)
    assert read(later) == read(document) is not None


@EVERY
def test_absent_fields_of_an_earlier_version_have_defaults(document, read, optional):
    earlier = copy.deepcopy(document)
    for path, fields in optional.items():
        for thing in at(earlier, path):
            for field in fields & thing.keys():
                del thing[field]
    assert read(earlier) == read(document) is not None


def test_an_earlier_grants_map_may_be_absent():
    document = node_devices()
    del document["grants"]
    assert annotations.read_node(json.dumps(document)).placed == {}


def test_unknown_tried_methods_of_a_later_version_are_skipped():
    document = stop_record()
    document["containers"]["log"]["tried"].append("teleport")
    assert read_stop_record(document).entries["log"].tried == {Method.STOP}


def test_reservations_of_a_later_version_count():
    assert claim_totals.read({"data": {"a": "30 1024 17 more"}}) == claim_totals.read(
        {"data": {"a": "30 1024 17"}}
    )


def test_image_reports_of_a_later_version_are_read():
    assert nodes.read_images('{"a:1": true, "b:1": {"since": 1}}') == {"a:1": True}


def test_grant_log_of_a_later_version_is_followed(tmp_path):
    """Its header, its changes and their grants have more fields."""
    found = grants.load(grant())
    with grant_log.Checkpoint(tmp_path, "node") as log:
        log.put(found)
    file = tmp_path / grant_log.FILE
    content = file.read_bytes()
    lines = content.partition(b"\0")[0].splitlines(keepends=True)
    changes = [{**grant_log._parse(line), "laterField": {"any": [1]}} for line in lines]
    for change in changes:
        for one in change.get("put", ()):
            one["laterField"] = 1
    written = b"".join(map(grant_log._line, changes))
    assert written.count(b"laterField") == len(lines) + 1
    file.write_bytes(written.ljust(len(content), b"\0"))
    with grant_log.Checkpoint(tmp_path, "node") as log:
        assert log.trouble == ""
        assert log.grants == {found.id: found}
