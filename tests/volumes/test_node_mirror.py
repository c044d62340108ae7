import datetime
import fcntl
import json
import os
import subprocess
import sys
import time

import pytest
import rights
from installed import installation_of

from pyvgpu import errors
from pyvgpu.volumes import find, mirror_store, node_mirror

LATER = 100.0  # seconds: beyond the grace


@pytest.fixture
def mirrored(tmp_path, shim):
    return node_mirror.NodeMirror(tmp_path / "output", shim)


@pytest.fixture
def upgraded(driver_folder, mirrored):
    """A node with a tree of 580.65.06, and a current one of 580.95.05."""
    mirrored.mirror(installation_of(driver_folder.path))
    upgrade(driver_folder)
    mirrored.mirror(installation_of(driver_folder.path))
    return mirrored


def upgrade(folder, release="580.95.05"):
    for path in folder.path.iterdir():
        path.unlink()
    folder.add_driver(release)


def trees(mirrored):
    return sorted(path.name.split("-")[0] for path in mirrored.output.glob("5*"))


def collect(mirrored, after=LATER):
    """Return what is removed *after* seconds from the switch of `current`."""
    return [tree.name.split("-")[0] for tree in mirrored.collect(time.time() + after)]


def test_current_leads_to_both_volumes(driver_folder, mirrored):
    state = mirrored.mirror(installation_of(driver_folder.path))
    current = mirrored.output / "current"
    assert current.readlink().name == state.tree
    assert current.resolve() == mirrored.current()
    own = driver_folder.path / "libcuda.so.1"
    assert (current / "exclusive/lib64/libcuda.so.1").samefile(own)
    assert (current / "shared/origin/libcuda-origin.so.1").samefile(own)
    assert (current / "shared/lib64/libcuda.so.1").read_bytes() == mirrored.shim.read_bytes()
    assert mirrored.state() == state
    assert (state.driver, state.release) == (node_mirror.DriverState.PRESENT, "580.65.06")


@rights.needs_pid_namespace
def test_nothing_is_removed_unless_all_processes_are_visible(upgraded, tmp_path):
    script = (
        "import pathlib, sys, time; from pyvgpu.volumes import node_mirror\n"
        "node_mirror.NodeMirror(*map(pathlib.Path, sys.argv[1:])).collect(time.time() + 100)"
    )
    done = subprocess.run(
        [*rights.PID_NAMESPACE, sys.executable, "-c", script, upgraded.output, upgraded.shim],
        capture_output=True,
        text=True,
    )
    assert "UnseenError: not all processes of this machine are visible" in done.stderr
    assert trees(upgraded) == ["580.65.06", "580.95.05"]


def test_shared_volume_has_a_folder_for_the_region(driver_folder, mirrored):
    mirrored.mirror(installation_of(driver_folder.path))
    made = mirrored.current()
    assert list((made / "shared/region").iterdir()) == []
    assert not (made / "exclusive/region").exists()
    (made / "shared/region").rmdir()
    mirrored.mirror(installation_of(driver_folder.path))
    assert (mirrored.current() / "shared/region").is_dir()


def test_second_time_changes_nothing(driver_folder, mirrored):
    def times():
        return {path: path.lstat().st_ctime_ns for path in mirrored.output.rglob("*")}

    first = mirrored.mirror(installation_of(driver_folder.path))
    before = times()
    assert mirrored.mirror(installation_of(driver_folder.path)) == first
    assert times() == before


def test_new_release_becomes_current_and_the_old_tree_is_as_it_was(driver_folder, mirrored):
    mirrored.mirror(installation_of(driver_folder.path))
    old = mirrored.current()
    upgrade(driver_folder)
    mirrored.mirror(installation_of(driver_folder.path))
    assert mirrored.current().name.startswith("580.95.05-")
    assert (old / "shared/origin/libcuda-origin.so.1").exists()
    assert (old / "exclusive/lib64/libcuda.so.580.65.06").exists()


def test_downgrade_reuses_the_existing_tree(driver_folder, upgraded):
    upgrade(driver_folder, "580.65.06")
    upgraded.mirror(installation_of(driver_folder.path))
    assert upgraded.current().name.startswith("580.65.06-")
    assert trees(upgraded) == ["580.65.06", "580.95.05"]


def test_missing_driver_keeps_the_last_tree_and_is_reported(driver_folder, mirrored):
    made = mirrored.mirror(installation_of(driver_folder.path))
    said = mirrored.mark(find.DriverMissingError("none in /usr/lib64\nnor elsewhere"))
    assert mirrored.current().name == made.tree
    assert mirrored.state() == said
    assert (said.driver, said.release, said.tree) == ("missing", "580.65.06", made.tree)
    assert said.reason == "none in /usr/lib64\\nnor elsewhere"
    written = json.loads((mirrored.output / "state.json").read_bytes())
    assert datetime.datetime.fromisoformat(written["since"]).tzinfo is not None


def test_returned_driver_is_reported(driver_folder, mirrored):
    mirrored.mirror(installation_of(driver_folder.path))
    mirrored.mark(find.DriverError("half upgraded"))
    assert mirrored.state().driver == "unusable"
    mirrored.mirror(installation_of(driver_folder.path))
    assert mirrored.state().driver == "present"


def test_node_without_a_mirror_is_not_changed(mirrored):
    state = mirrored.mark(find.DriverMissingError("none"))
    assert (state.tree, state.release) == ("", "")
    assert not mirrored.output.exists()
    assert mirrored.collect() == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layout": 2}', '{"layout": 1, "driver": "x"}'])
def test_invalid_state_is_ignored_and_rewritten(driver_folder, mirrored, text):
    made = mirrored.mirror(installation_of(driver_folder.path))
    (mirrored.output / "state.json").write_text(text)
    assert mirrored.state() is None
    assert mirrored.mirror(installation_of(driver_folder.path)) == made
    assert mirrored.state() == made


@pytest.mark.parametrize("target", ["nowhere", "/etc", "../driver", "known"])
def test_current_that_leads_to_no_tree_is_replaced(driver_folder, mirrored, target):
    mirrored.mirror(installation_of(driver_folder.path))
    (mirrored.output / "current").unlink()
    (mirrored.output / "current").symlink_to(target)
    assert mirrored.current() is None
    assert mirrored.collect(time.time() + LATER) == ()
    mirrored.mirror(installation_of(driver_folder.path))
    assert mirrored.current() is not None


def test_other_files_in_the_output_are_kept(driver_folder, mirrored):
    (mirrored.output / ".ssh").mkdir(parents=True)
    (mirrored.output / ".new-hope").write_text("mine")
    (mirrored.output / "580.1-notes").mkdir()
    (mirrored.output / ".pyvgpu-dead").mkdir()
    mirrored.mirror(installation_of(driver_folder.path))
    collect(mirrored)
    left = {path.name for path in mirrored.output.iterdir()} - {mirrored.current().name}
    assert left == {
        ".ssh", ".new-hope", "580.1-notes", "current", "known", "lock", "state.json",
    }  # fmt: skip


@rights.needs_first_pid_namespace
def test_unused_old_tree_is_removed(upgraded):
    assert trees(upgraded) == ["580.65.06", "580.95.05"]
    assert collect(upgraded) == ["580.65.06"]
    assert trees(upgraded) == ["580.95.05"]
    assert list(upgraded.output.glob(".*")) == []


def test_old_tree_stays_for_containers_that_are_being_created(upgraded):
    assert collect(upgraded, after=1.0) == []
    assert len(trees(upgraded)) == 2


@rights.needs_first_pid_namespace
def test_old_tree_stays_while_the_specification_names_it(driver_folder, shim, tmp_path):
    file, aside = tmp_path / "cdi/driver.json", tmp_path / "cdi/aside"
    mirrored = node_mirror.NodeMirror(tmp_path / "output", shim, file)
    mirrored.mirror(installation_of(driver_folder.path))
    upgrade(driver_folder)
    file.rename(aside)
    file.mkdir()
    assert mirrored.mirror(installation_of(driver_folder.path)).specification
    file.rmdir()
    aside.rename(file)
    assert collect(mirrored) == []
    mirrored.mirror(installation_of(driver_folder.path))
    assert collect(mirrored) == ["580.65.06"]


@rights.needs_first_pid_namespace
def test_old_tree_stays_while_it_is_locked(upgraded):
    old = next(upgraded.output.glob("580.65.06-*"))
    lease = os.open(old, os.O_RDONLY)
    fcntl.flock(lease, fcntl.LOCK_SH)
    assert collect(upgraded) == []
    os.close(lease)
    assert collect(upgraded) == ["580.65.06"]


@rights.needs_user_namespace
@rights.needs_first_pid_namespace
def test_old_tree_stays_while_a_container_mounts_a_volume_of_it(upgraded, tmp_path):
    old = next(upgraded.output.glob("580.65.06-*"))
    (tmp_path / "inside").mkdir()
    script = f"mount --bind {old}/shared {tmp_path}/inside && echo ready && cat"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    container = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert container.stdout.readline() == b"ready\n"
        assert collect(upgraded) == []
    finally:
        container.communicate()
    assert collect(upgraded) == ["580.65.06"]


@rights.needs_first_pid_namespace
def test_old_tree_stays_while_a_process_has_mapped_a_file_of_it(upgraded):
    old = next(upgraded.output.glob("580.65.06-*"))
    script = (
        "import mmap, sys; file = open(sys.argv[1]);"
        "kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); print('ready', flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, old / "shared/lib64/libcuda.so.1"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        assert collect(upgraded) == []
    finally:
        process.communicate()
    assert collect(upgraded) == ["580.65.06"]


def test_failed_write_of_the_specification_names_the_existing_mirror(
    driver_folder, shim, tmp_path
):
    (tmp_path / "cdi").write_text("in the way")
    mirrored = node_mirror.NodeMirror(tmp_path / "output", shim, tmp_path / "cdi/driver.json")
    state = mirrored.mirror(installation_of(driver_folder.path))
    assert (state.driver, mirrored.current().name) == (node_mirror.DriverState.PRESENT, state.tree)
    assert "the CDI specification cannot be written" in state.specification
    assert mirrored.state() == state
    (tmp_path / "cdi").unlink()
    assert mirrored.mirror(installation_of(driver_folder.path)).specification == ""
    assert (tmp_path / "cdi/driver.json").exists()


def test_output_that_cannot_be_created_is_an_error(driver_folder, shim, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(mirror_store.MirrorError, match=r"the driver's mirror cannot be created"):
        node_mirror.NodeMirror(tmp_path / "file", shim).mirror(installation_of(driver_folder.path))


def test_mark_raises_nothing_if_the_output_cannot_be_written(mirrored):
    mirrored.output.mkdir()
    (mirrored.output / "lock").mkdir()
    assert mirrored.mark(errors.UnavailableError("why")).reason == "why"
