"""A Podman with private storage, and container roots of a few files of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# Avoids features that this machine may not allow and the tests do not need.
_CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
[engine.runtimes]
runc = ["{runc}"]
"""
_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a Podman whose storage is in *folder*; skip without one."""
    for program in ("podman", "runc"):
        if not shutil.which(program):
            pytest.skip(f"needs {program} (apt-get install {program})")
    files = {"CONTAINERS_CONF": _CONTAINERS, "CONTAINERS_STORAGE_CONF": _STORAGE}
    for name, text in files.items():
        (folder / name).write_text(text.format(folder=folder, runc=shutil.which("runc")))
    return {**os.environ, **{name: str(folder / name) for name in files}}


def make_root(folder: Path, *programs: Path) -> None:
    """Fill *folder* as a container's root with *programs* in /bin, and their C library."""
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr/lib"):
        (folder / name).mkdir(parents=True)
    for program in programs:
        shutil.copy(program, folder / "bin")
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        for library in re.findall(r"(/\S+) \(0x", listed.stdout):
            place = folder / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(library).resolve(), place)
