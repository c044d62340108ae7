"""Path of a process's cgroup, as seen from a cgroup namespace."""

import subprocess
import sys
from pathlib import Path, PurePosixPath

import cgroup_room
import pytest

from pyvgpu.machine import cgroups

POINT = Path("/sys/fs/cgroup")


@pytest.mark.parametrize(
    ("placed", "top", "found"),
    [
        pytest.param("/", "/", "", id="the root"),
        pytest.param("/a/b", "/", "a/b", id="below the root"),
        pytest.param("/a/b", "/a", "b", id="only a part is mounted"),
        pytest.param("/c", "/a", None, id="in another part"),
        pytest.param("/../../pods/p", "/../..", "pods/p", id="beside a namespace of two"),
        pytest.param("/../pods/p", "/../..", "own/pods/p", id="below what is above it"),
        pytest.param("/x", "/../..", "own/name/x", id="in the namespace, seen from the root"),
        pytest.param("/../x", "/", None, id="outside of what is mounted"),
    ],
)
def test_path_of_a_cgroup(monkeypatch, placed, top, found):
    monkeypatch.setattr(cgroups, "_own", lambda _: PurePosixPath("own/name"))
    where = cgroups.folder(PurePosixPath(placed), PurePosixPath(top), POINT)
    assert where == (None if found is None else POINT / found)


@cgroup_room.needs_cgroups
def test_a_process_is_found_in_its_cgroup_also_within_a_namespace():
    with cgroup_room.cgroup() as own, cgroup_room.cgroup() as other:
        sleeper = subprocess.Popen(
            [sys.executable, "-c", cgroup_room.joining(other) + "print(0, flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sleeper.stdout.readline() == "0\n"
        assert cgroups.of_process(sleeper.pid) == other
        source = (
            cgroup_room.joining(own)
            + f"""
import os, subprocess
source = "from pyvgpu.machine import cgroups as c\\n"
source += "print(c.of_process({sleeper.pid}), c.of_process())"
command = ["unshare", "--cgroup", {sys.executable!r}, "-c", source]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
"""
        )
        command = [sys.executable, "-c", source]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said.split() == [str(other), str(own)]
        sleeper.communicate("\n")


@cgroup_room.needs_cgroups
def test_only_an_empty_cgroup_is_removed():
    with cgroup_room.cgroup() as outer, cgroup_room.cgroup(outer):
        assert not cgroups.remove(outer)
        assert outer.exists()
