import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import dying
import forked
import pytest
import rights

from pyvgpu.volumes import find, mirror, mirror_store

SHIM_NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")


@pytest.fixture
def driver(driver_folder):
    return find.find_driver(driver_folder.path)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def trees(cache):
    """The published trees, by name."""
    return sorted(p.name for p in (cache / "mirror").iterdir() if p.name.startswith("580."))


def unfinished(cache):
    return [path.name for path in (cache / "mirror").glob(".*")]


def inodes(folder, names):
    return {(folder / name).stat().st_ino for name in names}


def test_tree_has_the_shim_and_the_originals(driver, shim, cache):
    tree = mirror.ensure(driver, shim, cache)
    assert tree.lib64 == tree.path / "lib64"
    assert len(inodes(tree.lib64, SHIM_NAMES)) == 1
    assert (tree.lib64 / "libcuda.so.1").read_bytes() == shim.read_bytes()
    for private, own in (
        ("libcuda-origin.so.1", driver.libcuda),
        ("libnvidia-ml-origin.so.1", driver.libnvidia_ml),
    ):
        assert (tree.origin / private).resolve() == tree.origin / own.name
        assert (tree.origin / private).read_bytes() == own.read_bytes()
    sibling = driver.folder / "libnvidia-ptxjitcompiler.so.1"
    for folder in (tree.lib64, tree.origin):
        assert (folder / sibling.name).read_bytes() == sibling.read_bytes()


def test_trees_are_readable_by_all_users_with_any_umask(driver, shim, cache):
    before = os.umask(0o077)
    try:
        path = mirror.ensure(driver, shim, cache).path
    finally:
        os.umask(before)
    folders = [entry for entry in (path, *path.rglob("*")) if entry.is_dir()]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o755}


def test_driver_is_linked_and_the_shim_is_not(driver, shim, cache):
    tree = mirror.ensure(driver, shim, cache)
    assert (tree.origin / driver.libcuda.name).samefile(driver.libcuda)
    assert not (tree.lib64 / "libcuda.so.1").samefile(shim)


def test_no_progress_is_reported_if_nothing_is_copied(driver, shim, cache):
    steps = []
    mirror.ensure(driver, shim, cache, lambda *step: steps.append(step))
    assert steps == []


def test_same_driver_gives_the_same_untouched_tree(driver, shim, cache):
    first = mirror.ensure(driver, shim, cache)
    before = {path: path.lstat().st_ctime_ns for path in (cache / "mirror").rglob("*")}
    assert mirror.ensure(driver, shim, cache) == first
    assert {path: path.lstat().st_ctime_ns for path in (cache / "mirror").rglob("*")} == before


def test_reinstalled_driver_of_the_same_content_gives_the_same_tree(driver, shim, cache):
    first = mirror.ensure(driver, shim, cache)
    for file in driver.files:
        again = file.path.with_name("again")
        shutil.copyfile(file.path, again)
        again.replace(file.path)
    assert mirror.ensure(find.find_driver(driver.folder), shim, cache) == first
    assert trees(cache) == [first.path.name]


def test_new_release_gets_a_tree_beside_the_old_one(driver_folder, driver, shim, cache):
    old = mirror.ensure(driver, shim, cache)
    for path in driver_folder.path.iterdir():
        path.unlink()
    driver_folder.add_driver("580.95.05")
    new = mirror.ensure(find.find_driver(driver_folder.path), shim, cache)
    assert new.path.name.startswith("580.95.05-")
    assert (new.origin / "libcuda.so.580.95.05").exists()
    assert (old.origin / "libcuda.so.580.65.06").exists()


def test_new_shim_gets_a_tree_that_shares_the_driver(driver, shim, cache):
    old = mirror.ensure(driver, shim, cache)
    shim.write_bytes(shim.read_bytes() + b"new")
    new = mirror.ensure(driver, shim, cache)
    assert new.path != old.path
    assert (new.lib64 / "libcuda.so").read_bytes().endswith(b"new")
    assert not (old.lib64 / "libcuda.so").read_bytes().endswith(b"new")
    assert (new.origin / driver.libcuda.name).samefile(old.origin / driver.libcuda.name)


def _append(path):
    with path.open("ab") as file:
        file.write(b"x")


def _same_size_and_time(path):
    """Change the content so that only reading the file reveals it."""
    times = path.stat()
    content = path.read_bytes()
    path.chmod(0o755)
    with path.open("r+b") as file:
        file.write(b"\0" * len(content))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _other_file(path):
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def _link_to_an_empty_folder(path):
    empty = path.parents[4] / "empty"
    empty.mkdir()
    path.symlink_to(empty)


def _relink(path):
    path.unlink()
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("entry", "damage"),
    [
        pytest.param("lib64/libcuda.so.1", os.unlink, id="a name of the shim is gone"),
        pytest.param("lib64/libcuda.so.1", _other_file, id="the shim is two files"),
        pytest.param("lib64/libcuda.so", _same_size_and_time, id="the shim was written to"),
        pytest.param("origin/libcuda.so.580.65.06", os.unlink, id="an original is gone"),
        pytest.param("origin/libcuda-origin.so.1", os.unlink, id="a link is gone"),
        pytest.param("origin/libcuda-origin.so.1", _relink, id="a link leads elsewhere"),
        pytest.param("origin", shutil.rmtree, id="a folder is gone"),
        pytest.param("lib64/libother.so", lambda p: p.write_text(""), id="a file was added"),
        pytest.param(
            "lib64/libother.so", _link_to_an_empty_folder, id="a link to a folder was added"
        ),
        pytest.param("manifest.json", os.unlink, id="the manifest is gone"),
        pytest.param("manifest.json", lambda p: p.write_text("[]"), id="the manifest is a list"),
        pytest.param("manifest.json", lambda p: p.write_text("{"), id="the manifest is cut short"),
        pytest.param(
            "manifest.json",
            lambda p: p.write_text('{"layout": 1, "entries": {"lib64/x": {"inode": 1}}}'),
            id="the manifest lacks a field",
        ),
        pytest.param(
            "manifest.json",
            lambda p: p.write_text(p.read_text().replace('"layout": 1', '"layout": 2')),
            id="the manifest is of another layout",
        ),
    ],
)
def test_damaged_tree_is_replaced(driver, shim, cache, entry, damage):
    first = mirror.ensure(driver, shim, cache)
    damage(first.path / entry)
    content = driver.libcuda.read_bytes()
    assert mirror.ensure(driver, shim, cache) == first
    test_tree_has_the_shim_and_the_originals(driver, shim, cache)
    assert (first.path / "lib64/libother.so").exists() is False
    assert driver.libcuda.read_bytes() == content
    assert unfinished(cache) == []


def test_change_of_the_driver_in_place_is_noticed(driver, shim, cache):
    first = mirror.ensure(driver, shim, cache)
    _append(driver.libnvidia_ml)
    second = mirror.ensure(find.find_driver(driver.folder), shim, cache)
    assert second.path != first.path


def test_copied_tree_is_not_trusted(driver, shim, cache, tmp_path):
    first = mirror.ensure(driver, shim, cache)
    moved = tmp_path / "moved"
    shutil.copytree(cache, moved, symlinks=True)
    second = mirror.ensure(driver, shim, moved)
    assert second.path.name == first.path.name
    assert len(inodes(second.lib64, SHIM_NAMES)) == 1


def test_leftovers_of_a_dead_process_are_removed(driver, shim, cache):
    (cache / "mirror" / ".pyvgpu-dead" / "lib64").mkdir(parents=True)
    (cache / "mirror" / ".pyvgpu-dead-link").symlink_to("nowhere")
    (cache / "mirror" / "known").mkdir()
    (cache / "mirror" / "known" / "dead").symlink_to("../580.1-dead")
    mirror.ensure(driver, shim, cache)
    assert unfinished(cache) == []
    assert all(link.exists() for link in (cache / "mirror" / "known").iterdir())


@pytest.fixture
def memory():
    """A folder on a file system other than the driver's."""
    if Path("/dev/shm").stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("needs /dev/shm and the temporary folder on two file systems")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pyvgpu-test-") as folder:
        yield Path(folder)


def test_driver_that_changes_while_it_is_mirrored_is_an_error(driver, shim, memory):
    def change(*_):
        os.utime(driver.libnvidia_ml, (1, 1))

    with pytest.raises(mirror_store.MirrorError, match="changed while they were mirrored"):
        mirror.ensure(driver, shim, memory / "cache", change)
    assert (trees(memory / "cache"), unfinished(memory / "cache")) == ([], [])
    assert mirror.ensure(driver, shim, memory / "cache").lib64.exists()


@pytest.mark.slow
def test_death_at_any_step_of_copying_leaves_no_partial_tree(driver, shim, memory):
    assert_death_leaves_no_partial_tree(driver, shim, memory / "cache", damaged=False)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True], ids=["from nothing", "over a damaged tree"])
def test_death_at_any_step_leaves_no_partial_tree(driver, shim, cache, damaged):
    assert_death_leaves_no_partial_tree(driver, shim, cache, damaged)


def assert_death_leaves_no_partial_tree(driver, shim, cache, damaged):
    def make():
        mirror.ensure(driver, shim, cache)

    step = 0
    died = True
    while died:
        step += 1
        shutil.rmtree(cache, ignore_errors=True)
        if damaged:
            make()
            (cache / "mirror" / trees(cache)[0] / "origin" / "libcuda-origin.so.1").unlink()
        died = dying.die_at(step, make)
        if died and not damaged and (cache / "mirror").exists() and trees(cache):
            published = cache / "mirror" / trees(cache)[0]
            assert (published / "manifest.json").exists(), f"partial tree after step {step}"
            assert len(inodes(published / "lib64", SHIM_NAMES)) == 1
        tree = mirror.ensure(driver, shim, cache)
        assert (tree.origin / "libcuda-origin.so.1").read_bytes() == driver.libcuda.read_bytes()
        assert unfinished(cache) == [], f"leftovers after step {step}"
        assert trees(cache) == [tree.path.name]
    assert step > 40


def test_concurrent_processes_create_one_tree(driver, shim, cache):
    children = []
    reader, writer = os.pipe()
    for _ in range(12):
        child = os.fork()
        if child == 0:
            try:
                os.close(writer)
                os.read(reader, 1)  # all start when the pipe closes
                tree = mirror.ensure(driver, shim, cache)
                os._exit(0 if (tree.lib64 / "libcuda.so.1").exists() else 2)
            finally:
                os._exit(1)
        children.append(child)
    os.close(reader)
    os.close(writer)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 12
    assert len(trees(cache)) == 1
    assert unfinished(cache) == []


@rights.as_root
def test_file_of_another_user_is_copied(driver, shim, cache):
    """Linux refuses hard links to files of other users (fs.protected_hardlinks)."""
    for folder in (cache.parent, *cache.parent.parents):
        if folder.owner() == "root" and str(folder) != "/tmp":
            folder.chmod(folder.stat().st_mode | 0o755)
    cache.mkdir()
    os.chown(cache, forked.OTHER_UID, forked.OTHER_UID)

    def make():
        steps = []
        return mirror.ensure(driver, shim, cache, lambda *step: steps.append(step)), steps

    tree, steps = forked.call(make, uid=forked.OTHER_UID)
    total = sum(file.path.stat().st_size for file in driver.files)
    copied = tree.origin / driver.libcuda.name
    assert copied.read_bytes() == driver.libcuda.read_bytes()
    assert not copied.samefile(driver.libcuda)
    assert copied.stat().st_mode & 0o222 == 0
    assert steps[-1][1:] == (total, total)
    shim.write_bytes(shim.read_bytes() + b"new")
    again, steps = forked.call(make, uid=forked.OTHER_UID)
    assert (again.origin / driver.libcuda.name).samefile(copied)
    assert steps == []


def in_namespace(commands, script, *arguments):
    """Run shell *commands*, then Python, in a new mount namespace."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-e", "-c"]
    text = f'{commands}\nexec "$@"'
    python = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run([*command, text, "sh", *python], capture_output=True, text=True)


MAKE = """
    import sys
    from pathlib import Path
    from pyvgpu import errors
    from pyvgpu.volumes import find, mirror
    folder, shim, cache = map(Path, sys.argv[1:])
    driver = find.find_driver(folder)
    steps = []
    try:
        tree = mirror.ensure(driver, shim, cache, lambda *step: steps.append(step))
    except errors.PyVgpuError as exc:
        left = [path.name for path in (cache / "mirror").glob("*")] if cache.exists() else []
        sys.exit(f"{exc.exit_code} {exc} {left}")
    print(len(steps) > 0, (tree.origin / "libcuda-origin.so.1").stat().st_nlink)
"""


@rights.needs_user_namespace
def test_other_file_system_gets_copies(driver, shim, cache):
    cache.mkdir()
    done = in_namespace(f"mount -t tmpfs none {cache}", MAKE, driver.folder, shim, cache)
    assert (done.stdout, done.stderr) == ("True 1\n", "")


@rights.needs_user_namespace
def test_full_disk_is_an_error_and_leaves_nothing(driver_folder, driver, shim, cache):
    cache.mkdir()
    with driver.libcuda.open("ab") as file:
        file.write(b"\1" * (1 << 20))
    done = in_namespace(
        f"mount -t tmpfs -o size=256k none {cache}", MAKE, driver.folder, shim, cache
    )
    assert done.stderr.startswith(f"69 {cache}/mirror: no space for the driver's mirror, which")
    assert done.stderr.endswith("XDG_CACHE_HOME ['lock']\n")


@rights.needs_user_namespace
def test_read_only_target_is_an_error(driver, shim, cache):
    cache.mkdir()
    done = in_namespace(f"mount -t tmpfs -o ro none {cache}", MAKE, driver.folder, shim, cache)
    assert done.stderr.startswith(f"77 {cache}/mirror: cannot be used for the driver's mirror (")
    assert "Read-only file system" in done.stderr


@rights.needs_user_namespace
def test_existing_tree_on_a_read_only_file_system_is_used(driver, shim, cache):
    tree = mirror.ensure(driver, shim, cache)
    done = in_namespace(
        f"mount --bind {cache} {cache}; mount -o remount,ro,bind {cache}",
        MAKE,
        driver.folder,
        shim,
        cache,
    )
    assert done.stderr == ""
    assert trees(cache) == [tree.path.name]
