import json
import os
import stat
from pathlib import Path

import pytest
import rights
import simulated_node
from installed import installation_of

from pyvgpu import errors
from pyvgpu.volumes import cdi, installation, mirror_plan, node_mirror

TREE = Path("/srv/driver/580.1-0123456789abcdef")
READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
CONTROL = cdi.CdiNode("nvidiactl", 195, 255)
TOOLS = cdi.CdiNode("nvidia-uvm-tools", 508, 1)
FIRST = cdi.CdiNode("nvidia0", 195, 0)


def volume(name="shared", shared=True):
    return installation.DriverVolume(name, shared, ())


def entry(path):
    return mirror_plan.PlannedFile(path, Path("/host") / path)


def edits(document):
    return {each["name"]: each["containerEdits"] for each in document["devices"]}


def mounts(document, name="shared"):
    return {m["containerPath"]: m["hostPath"] for m in edits(document)[name]["mounts"]}


def test_volume_is_mounted_whole_and_read_only():
    document = cdi.specification(TREE, [entry("shared/lib64/libx.so.1")], [volume()], [])
    assert edits(document)["shared"] == {
        "mounts": [
            {
                "hostPath": f"{TREE}/shared",
                "containerPath": "/usr/local/nvidia",
                "options": READ_ONLY,
            }
        ]
    }


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        ("etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
        ("share/vulkan/icd.d/nvidia_icd.json", "/usr/share/vulkan/icd.d/nvidia_icd.json"),
        ("firmware/nvidia/580.1/gsp_ga10x.bin", "/lib/firmware/nvidia/580.1/gsp_ga10x.bin"),
    ],
)
def test_files_found_by_path_are_mounted_at_their_path(path, place):
    entries = [entry(f"shared/{path}"), entry(f"exclusive/{path}")]
    document = cdi.specification(TREE, entries, [volume(), volume("exclusive", False)], [])
    for name in ("shared", "exclusive"):
        assert mounts(document, name) == {
            "/usr/local/nvidia": f"{TREE}/{name}",
            place: f"{TREE}/{name}/{path}",
        }


def test_shared_volume_has_no_device_node_that_bypasses_the_share():
    volumes = [volume(), volume("exclusive", False)]
    given = edits(cdi.specification(TREE, [], volumes, [CONTROL, TOOLS, FIRST]))
    control = {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}
    tools = {"path": "/dev/nvidia-uvm-tools", "type": "c", "major": 508, "minor": 1}
    assert given["shared"]["deviceNodes"] == [control]
    assert given["exclusive"]["deviceNodes"] == [control, tools]
    assert given["nvidia0"] == {
        "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]
    }


def test_library_path_is_set_only_by_a_device_of_its_own():
    document = cdi.specification(TREE, [], [volume()], [])
    given = edits(document)
    assert given["library-path"] == {"env": ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64"]}
    assert "env" not in given["shared"]
    assert document["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}


@pytest.mark.parametrize("name", ["library-path", "nvidia0", "_shared", "shared-", "-"])
def test_volume_with_an_invalid_device_name_is_refused(name):
    with pytest.raises(errors.DataError, match="CDI needs a name"):
        cdi.specification(TREE, [], [volume(name)], [FIRST])


def test_paths_that_json_cannot_carry_are_refused():
    with pytest.raises(errors.DataError, match=r"\\xff: .* UTF-8"):
        cdi.specification(Path(os.fsdecode(b"/srv/\xff")), [], [volume()], [])


@rights.as_root
def test_nodes_are_those_of_the_root_and_only_the_drivers(tmp_path):
    dev = tmp_path / "dev"
    minors = {"nvidia0": 0, "nvidiactl": 255, "nvidia-caps": 9, "tty": 5}
    simulated_node.make_nodes(dev, {name: (195, minor) for name, minor in minors.items()})
    (dev / "nvidia1").write_text("no device")
    assert cdi.nodes(tmp_path) == (FIRST, CONTROL)


def test_specification_follows_the_driver_and_is_written_once(driver_folder, shim, tmp_path):
    file = tmp_path / "cdi" / "pyvgpu.io-driver.json"
    kept = node_mirror.NodeMirror(tmp_path / "output", shim, file)
    kept.mirror(installation_of(driver_folder.path))
    first = json.loads(file.read_bytes())
    assert mounts(first)["/usr/local/nvidia"] == str(kept.current() / "shared")
    before = file.stat()
    kept.mirror(installation_of(driver_folder.path))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    for path in driver_folder.path.iterdir():
        path.unlink()
    driver_folder.add_driver("580.95.05")
    kept.mirror(installation_of(driver_folder.path))
    second = json.loads(file.read_bytes())
    assert mounts(second)["/usr/local/nvidia"] == str(kept.current() / "shared")
    assert second != first
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_failed_write_of_a_specification_is_reported_and_leaves_nothing(tmp_path):
    (tmp_path / "cdi").write_text("in the way")
    with pytest.raises(errors.UnavailableError, match="the CDI specification cannot be written"):
        cdi.write({}, tmp_path / "cdi" / "x.json")
    target = tmp_path / "folder.json"
    target.mkdir()
    with pytest.raises(errors.UnavailableError, match="cannot be written"):
        cdi.write({}, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cdi", "folder.json"]


@pytest.mark.parametrize("name", ["driver", "driver.conf", "driver.yaml", ".json"])
def test_file_that_runtimes_would_ignore_is_refused(name):
    with pytest.raises(errors.UsageError, match=r"name ends in \.json"):
        cdi.check_name(Path("/var/run/cdi") / name)
