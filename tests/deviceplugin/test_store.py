"""A grant's files exist completely or not at all, and are removed completely."""

import contextlib
import dataclasses
import os
import stat
import subprocess
import time
from pathlib import Path

import dying
import granted
import pytest
import rights
from granted import GIB, grant_of, share_of

from pyvgpu import errors, locks, quota, region
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import store
from pyvgpu.volumes import atomic_files, tree_users

MIB = 1 << 20


def limits(path):
    with (path / "quota").open("rb") as file:
        return region.read_limits(file.fileno())


def identities(path):
    with (path / "quota").open("rb") as held, (path / "usage").open("rb") as used:
        return region.read_quota_id(held.fileno()), region.read_usage_id(used.fileno())


def test_share_has_quota_and_usage_files_of_one_region(places, machine, driver):
    grant = grant_of(
        share_of(machine, vcore=30, size=GIB),
        share_of(machine, 1, vcore=30, size=GIB),
        policy=quota.TimePolicy.ELASTIC,
        ceiling=60,
    )
    places.make(grant, driver)
    path = places.path(grant.id)
    found = limits(path)
    assert [(d.uuid, d.vcore, d.vcore_limit, d.vmemory) for d in found.devices] == [
        (each.uuid, 30, 60, GIB) for each in machine.devices
    ]
    assert found.driver_release == driver.release
    assert not found.flags & region.SUPERVISED
    first, second = identities(path)
    assert first == second
    usage = (path / "usage").stat()
    assert usage.st_size == region.USAGE_BYTES <= 1 << 20
    assert usage.st_blocks * 512 >= region.USAGE_BYTES
    assert stat.S_IMODE(usage.st_mode) == 0o666
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o1700
    assert (path / "driver").readlink() == driver.tree
    assert places.present() == {grant.id}


def mounts(edits):
    return {mount["containerPath"]: mount for mount in edits["mounts"]}


def test_share_has_the_shim_in_every_loader_path(places, machine, driver):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    given = mounts(edits)
    shim = driver.tree / "shared/lib64/libcuda.so.1"
    for folder in ("/usr/local/pyvgpu/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
        for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"):
            if folder.startswith("/usr/local"):
                source = driver.tree / "shared/lib64" / name
            else:
                source = given[f"{folder}/{name}"]["hostPath"]
            assert Path(source).samefile(shim)
    for target, mount in given.items():
        writable = target in ("/run/pyvgpu/usage", str(machine.folder))
        assert mount["options"][0] == ("rw" if writable else "ro")
    assert not any(word.startswith("LD_LIBRARY_PATH") for word in edits["env"])


def test_share_gets_only_its_devices_nodes(places, machine, driver):
    grant = grant_of(share_of(machine, 1))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia1"]


def test_whole_device_comes_with_the_plain_driver(places, machine, driver):
    grant = grant_of(share_of(machine, vcore=100))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    given = mounts(edits)
    assert given["/usr/local/pyvgpu"]["hostPath"] == str(driver.tree / "exclusive")
    ours = ("/etc/", "/run/", "/usr/local/cuda")
    assert not [target for target in given if target.startswith(ours)]
    shim = driver.tree / "shared/lib64/libcuda.so.1"
    library = given["/usr/lib64/libcuda.so.1"]["hostPath"]
    assert not Path(library).samefile(shim)
    assert [node["path"] for node in edits["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
    ]
    assert not (places.path(grant.id) / "quota").exists()


def test_making_a_grant_again_keeps_files_in_use(places, machine, driver):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    path = places.path(grant.id)
    before = [(path / name).stat() for name in ("quota", "usage")], limits(path)
    places.make(grant, driver)
    after = [(path / name).stat() for name in ("quota", "usage")], limits(path)
    assert [(s.st_ino, s.st_mtime_ns) for s in before[0]] == [
        (s.st_ino, s.st_mtime_ns) for s in after[0]
    ]
    assert before[1] == after[1]


def test_new_limits_are_written_in_place(places, machine, driver):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    path = places.path(grant.id)
    inode = (path / "quota").stat().st_ino
    more = dataclasses.replace(grant, shares=(share_of(machine, vcore=50, size=3 * GIB),))
    places.make(more, driver)
    found = limits(path)
    assert (found.generation, found.devices[0].vcore, found.devices[0].vmemory) == (2, 50, 3 * GIB)
    assert (path / "quota").stat().st_ino == inode


def test_new_driver_changes_specification_and_quota(places, machine, driver):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    other = dataclasses.replace(driver, release="999.2")
    places.make(grant, other)
    assert limits(places.path(grant.id)).driver_release == "999.2"


@pytest.mark.parametrize("harm", ["short", "empty", "garbage", "link", "folder"])
@pytest.mark.parametrize("name", ["usage", "quota"])
def test_damaged_files_are_recreated(places, machine, driver, harm, name):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    file = places.path(grant.id) / name
    if harm in ("short", "empty"):
        os.truncate(file, 100 if harm == "short" else 0)
    elif harm == "garbage":
        file.write_bytes(os.urandom(file.stat().st_size))
    else:
        file.unlink()
        file.symlink_to("/etc/hostname") if harm == "link" else file.mkdir()
    places.make(grant, driver)
    assert limits(file.parent).devices[0].vcore == 30
    first, second = identities(file.parent)
    assert first == second


def test_removed_grant_leaves_no_files(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    places.remove(grant.id)
    places.remove(grant.id)
    assert places.present() == frozenset()
    assert list((tmp_path / "grants").iterdir()) == []
    assert list((tmp_path / "cdi").iterdir()) == []


def test_only_orphans_are_collected(places, machine, driver, tmp_path):
    made = [grant_of(share_of(machine), number=number) for number in range(1, 5)]
    for grant in made:
        places.make(grant, driver)
    places.specification(made[1].id).unlink()
    places.prepare(f"{9:016x}")
    (tmp_path / "cdi" / "pyvgpu.io-driver.json").write_text("{}")
    live = {made[0].id, made[3].id}
    assert places.collect(lambda: live) == {made[1].id, made[2].id, f"{9:016x}"}
    assert places.present() == live
    assert (tmp_path / "cdi" / "pyvgpu.io-driver.json").exists()
    assert places.collect(lambda: live) == frozenset()


def test_grant_created_during_collection_is_kept(places, machine, driver):
    grant = grant_of(share_of(machine))

    def live():
        places.make(grant, driver)
        return set()

    assert places.collect(live) == frozenset()
    assert places.present() == {grant.id}


def test_extended_usage_file_is_truncated(places, machine, driver):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    with (places.path(grant.id) / "usage").open("ab") as file:
        file.write(bytes(10 * MIB))
    assert places.cut(grant.id)
    assert (places.path(grant.id) / "usage").stat().st_size == region.USAGE_BYTES
    assert not places.cut(grant.id)
    assert not places.cut(f"{9:016x}")


def test_tree_is_kept_while_a_grant_needs_it(places, machine, driver, tmp_path):
    first, second = (grant_of(share_of(machine), number=number) for number in (1, 2))
    other = tmp_path / "other"
    other.mkdir()
    newer = dataclasses.replace(driver, tree=other)
    places.make(first, driver)
    places.make(second, driver)
    assert locks.is_flocked(driver.tree)
    places.make(first, newer)
    assert locks.is_flocked(driver.tree)
    assert locks.is_flocked(other)
    places.remove(second.id)
    assert not locks.is_flocked(driver.tree)
    assert locks.is_flocked(other)


def test_running_container_keeps_its_driver(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    other = tmp_path / "other"
    other.mkdir()
    newer = dataclasses.replace(driver, tree=other, release="1000.1")
    described = places.specification(grant.id).read_bytes()
    (share,) = grant.shares
    less = dataclasses.replace(grant, shares=(dataclasses.replace(share, vcore=share.vcore - 1),))
    places.repair(less, newer)
    assert places.specification(grant.id).read_bytes() == described
    assert locks.is_flocked(driver.tree)
    with (places.path(grant.id) / "quota").open("rb") as file:
        limits = region.read_limits(file.fileno())
    assert (limits.driver_release, limits.devices[0].vcore) == (driver.release, share.vcore - 1)
    places.make(less, newer)  # its container starts again
    with (places.path(grant.id) / "quota").open("rb") as file:
        assert region.read_limits(file.fileno()).driver_release == "1000.1"
    assert places.specification(grant.id).read_bytes() != described


def test_restarted_agent_holds_the_trees_again(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    places.close()
    assert not locks.is_flocked(driver.tree)
    again = store.GrantStore(tmp_path / "grants", tmp_path / "cdi")
    again.make(grant, driver)
    assert locks.is_flocked(driver.tree)
    with contextlib.suppress(errors.PermissionDeniedError):
        assert tree_users.used([driver.tree]) == {driver.tree}
    again.close()


@pytest.mark.slow
def test_agent_killed_at_any_step_leaves_repairable_files(machine, driver, tmp_path):
    grant, gone = grant_of(share_of(machine)), grant_of(share_of(machine, 1), number=2)

    def work(base):
        mine = store.GrantStore(base / "grants", base / "cdi")
        mine.make(grant, driver)
        mine.make(gone, driver)
        mine.remove(gone.id)

    for step in range(1, 1000):
        base = tmp_path / str(step)
        died = dying.die_at(step, lambda base=base: work(base))
        for specification in base.glob("cdi/*.json"):  # with one, a container can start
            held = base / "grants" / specification.stem.removeprefix("pyvgpu.io-grant-")
            first, second = identities(held)
            assert first == second
            assert limits(held).devices
        mine = store.GrantStore(base / "grants", base / "cdi")
        mine.collect(lambda: {grant.id})
        mine.make(grant, driver)
        assert mine.present() == {grant.id}
        assert limits(mine.path(grant.id)).devices[0].uuid == grant.shares[0].uuid
        assert sorted(path.name for path in (base / "grants").iterdir()) == [grant.id]
        assert sorted(path.name for path in mine.path(grant.id).iterdir()) == [
            "clock",
            "driver",
            "quota",
            "usage",
        ]
        mine.close()
        if not died:
            break
    else:
        pytest.fail("there was no end")
    assert step > 30


def test_only_abandoned_drafts_of_specifications_are_removed(tmp_path):
    beside = tmp_path / "cdi"
    beside.mkdir()
    left, begun = (
        atomic_files.new(beside),
        atomic_files.new(beside),
    )  # of a killed agent, of another program
    for path in (left, begun):
        path.touch()
    long_ago = time.time() - atomic_files.FORSAKEN_SECONDS - 1
    os.utime(left, (long_ago, long_ago))
    store.GrantStore(tmp_path / "grants", beside).close()
    assert list(beside.iterdir()) == [begun]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": {}}, "no device node in /dev for GPU-"),
        ({"devices": {}}, "no device GPU-.* on this node"),
    ],
)
def test_grant_of_a_missing_device_is_refused(places, machine, driver, change, said):
    grant = grant_of(share_of(machine))
    with pytest.raises(errors.DataError, match=said):
        places.make(grant, dataclasses.replace(driver, **change))
    assert not places.specification(grant.id).exists()


def test_unbound_grant_is_not_made(places, driver):
    with pytest.raises(errors.DataError, match="no device"):
        places.make(grants.Grant(f"{1:016x}", frozenset({"c"}), 1.0), driver)


@pytest.mark.parametrize("bad", ["", "..", "0123", "../../../etc/passwd", "G" * 16, "a" * 17])
def test_invalid_grant_id_names_no_file(places, bad):
    for act in (places.path, places.prepare, places.remove):
        with pytest.raises(errors.DataError, match="16 hexadecimal"):
            act(bad)


@rights.needs_mounts
def test_full_disk_leaves_no_startable_grant(machine, driver, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], check=True)
    try:
        mine = store.GrantStore(disk / "grants", tmp_path / "cdi")
        with pytest.raises(errors.UnavailableError, match="No space left on device; make room"):
            mine.make(grant_of(share_of(machine)), driver)
        assert not list((tmp_path / "cdi").iterdir())
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(errors.PermissionDeniedError, match="Read-only file system"):
            mine.make(grant_of(share_of(machine), number=2), driver)
        with pytest.raises(errors.PermissionDeniedError, match="Read-only file system"):
            store.GrantStore(disk / "grants", tmp_path / "cdi")
        mine.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
