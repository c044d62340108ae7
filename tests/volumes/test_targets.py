"""Mirrors on file systems with limited features, and processes that die while they create one."""

import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap

import dying
import forked
import pytest
import rights
from installed import installation_of

from pyvgpu.volumes import mirror_store, node_mirror

MAKE = """
    import json, sys
    from pathlib import Path
    from installed import installation_of
    from pyvgpu import errors
    from pyvgpu.volumes import node_mirror
    folder, shim, output = map(Path, sys.argv[1:])
    steps = []
    try:
        mirrored = node_mirror.NodeMirror(output, shim)
        for _ in range(2):
            mirrored.mirror(installation_of(folder), lambda *step: steps.append(step))
    except errors.PyVgpuError as exc:
        sys.exit(f"{exc.exit_code} {exc}")
    tree = mirrored.current()
    kinds = {
        str(path.relative_to(tree)): "link" if path.is_symlink() else path.stat().st_nlink
        for path in tree.rglob("*") if not path.is_dir()
    }
    print(json.dumps({"copied": len({name for name, _, _ in steps}), "kinds": kinds,
                      "broken": [str(p) for v in tree.iterdir() if v.is_dir()
                                 for p in v.rglob("*")
                                 if not p.resolve().is_relative_to(v) or not p.exists()]}))
"""

NO_LINKS = """
    #include <errno.h>
    int link() { errno = EOPNOTSUPP; return -1; }
    int linkat() { return link(); }
"""
REFLINKS = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <linux/fs.h>
    #include <sys/sendfile.h>
    int ioctl(int target, unsigned long what, long source)
    {
        int (*other)(int, unsigned long, long) = dlsym(RTLD_NEXT, "ioctl");
        off_t at = 0;
        if (what != FICLONE)
            return other(target, what, source);
        while (sendfile(target, source, &at, 1 << 20) > 0)
            ;
        return 0;
    }
"""


def made(arguments, *, before=(), variables=()):
    """Create a mirror in a separate process; return its report."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(variables)
    command = [*before, sys.executable, "-c", textwrap.dedent(MAKE), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def mirrored(tmp_path, shim):
    return node_mirror.NodeMirror(tmp_path / "output", shim)


def without_links(folder, more=""):
    """Return the environment of a process whose file systems have no hard links.

    Many network file systems have none; a preloaded link(2) simulates one.
    """
    source, library = folder / "nolinks.c", folder / "nolinks.so"
    source.write_text(more + NO_LINKS)
    command = ["cc", "-std=gnu11", "-w", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}


def test_file_system_without_hard_links_gets_copies_and_links_within_a_volume(
    driver_folder, mirrored, tmp_path
):
    (driver_folder.path / "libcuda.so.580.65.06").chmod(0o755)
    result = made(
        (driver_folder.path, mirrored.shim, mirrored.output), variables=without_links(tmp_path)
    )
    kinds = result["kinds"]
    assert result["copied"] == 4
    assert result["broken"] == []
    assert kinds["shared/lib64/libcuda.so.1"] == 1
    assert kinds["shared/lib64/libnvidia-ml.so.1"] == "link"
    assert kinds["shared/origin/libcuda.so.580.65.06"] == 1
    assert kinds["exclusive/lib64/libcuda.so.580.65.06"] == 1
    for stem, mode in (("libcuda", 0o555), ("libnvidia-ml", 0o444)):
        copy = mirrored.current() / f"exclusive/lib64/{stem}.so.580.65.06"
        assert stat.S_IMODE(copy.stat().st_mode) == mode


def test_file_system_that_can_share_blocks_gets_no_copies(driver_folder, mirrored, tmp_path):
    """A preloaded ioctl() that copies for FICLONE simulates one."""
    result = made(
        (driver_folder.path, mirrored.shim, mirrored.output),
        variables=without_links(tmp_path, REFLINKS),
    )
    assert (result["copied"], result["broken"]) == (0, [])
    assert result["kinds"]["exclusive/lib64/libcuda.so.580.65.06"] == 1
    own = driver_folder.path / "libcuda.so.580.65.06"
    made_of_it = mirrored.current() / "exclusive/lib64/libcuda.so.580.65.06"
    assert made_of_it.read_bytes() == own.read_bytes()


@rights.needs_user_namespace
@pytest.mark.parametrize(
    "mount",
    [
        pytest.param("mount -t tmpfs none {output}", id="tmpfs"),
        pytest.param(
            "mount -t tmpfs none {layers} && mkdir {layers}/upper {layers}/work && "
            "mount -t overlay none {output} "
            "-o lowerdir={output},upperdir={layers}/upper,workdir={layers}/work,userxattr",
            id="overlay",
        ),
    ],
)
def test_other_file_system_gets_one_copy_for_both_volumes(
    driver_folder, mirrored, tmp_path, mount
):
    layers = tmp_path / "layers"
    layers.mkdir()
    mirrored.output.mkdir()
    text = mount.format(output=mirrored.output, layers=layers) + ' && exec "$@"'
    result = made(
        (driver_folder.path, mirrored.shim, mirrored.output),
        before=("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", text, "sh"),
    )
    assert result["copied"] == 4
    assert result["broken"] == []
    assert result["kinds"]["shared/origin/libcuda.so.580.65.06"] == 2
    assert result["kinds"]["shared/lib64/libcuda.so"] == 4


@rights.as_root
def test_permission_denied_midway_is_an_error(driver_folder, mirrored, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and str(folder) != "/tmp":
            folder.chmod(folder.stat().st_mode | 0o755)
    mirrored.output.mkdir()
    os.chown(mirrored.output, forked.OTHER_UID, forked.OTHER_UID)
    found = installation_of(driver_folder.path)
    last = driver_folder.path / "libnvidia-ptxjitcompiler.so.580.65.06"
    last.chmod(0)
    answer = forked.call(lambda: mirrored.mirror(found), uid=forked.OTHER_UID)
    assert isinstance(answer, mirror_store.MirrorRefusedError)
    assert str(answer) == (
        f"{last}: cannot be used for the driver's mirror (Permission denied); name another "
        "folder with --output"
    )
    assert [path.name for path in mirrored.output.iterdir()] == ["lock"]


def assert_whole(tree):
    assert (tree / "manifest.json").exists()
    release = tree.name.rpartition("-")[0]
    for path in (f"shared/origin/libcuda.so.{release}", "exclusive/lib64/libcuda.so.1"):
        assert (tree / path).exists()


@pytest.mark.slow
def test_death_at_any_step_of_an_upgrade_leaves_a_complete_tree(driver_folder, mirrored):
    before = installation_of(driver_folder.path.rename(driver_folder.path.with_name("old")))
    driver_folder.path.mkdir()
    after = installation_of(driver_folder.add_driver("580.95.05").path)
    step, died = 0, True
    while died:
        step += 1
        shutil.rmtree(mirrored.output, ignore_errors=True)
        mirrored.mirror(before)
        died = dying.die_at(step, lambda: mirrored.mirror(after))
        current = mirrored.current()
        assert current is not None, f"no current tree after step {step}"
        assert_whole(current)
        state = mirrored.mirror(after)
        assert mirrored.current().name == state.tree
        assert state.release == "580.95.05"
        assert list(mirrored.output.glob(".*")) == [], f"leftovers after step {step}"
    assert step > 40
