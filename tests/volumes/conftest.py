"""Tiny ELF libraries that look like a driver's, made with the C compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

RELEASE = "580.65.06"
SONAMES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libcudadebugger.so.1",
    "libcuda-control.so",
)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """A folder with one library per SONAME, named by its SONAME."""
    folder = tmp_path_factory.mktemp("libraries")
    for soname in SONAMES:
        # The loader's name is text in the file, so a longer name makes no two files alike.
        command = ["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{soname}"]
        subprocess.run([*command, "-o", folder / soname], check=True)
    return folder


class DriverFolder:
    """A folder in which a driver is or will be installed."""

    def __init__(self, path, libraries):
        self.path = path
        self._libraries = libraries
        path.mkdir(parents=True)

    def add(self, name, soname, more=b""):
        """Install a library; *more* bytes at its end change its content, not its meaning."""
        target = self.path / name
        target.write_bytes((self._libraries / soname).read_bytes() + more)
        return target

    def link(self, name, target):
        (self.path / name).symlink_to(target)

    def add_driver(self, release=RELEASE):
        for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libcudadebugger"):
            self.add(f"{stem}.so.{release}", f"{stem}.so.1")
            self.link(f"{stem}.so.1", f"{stem}.so.{release}")
        return self


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path."""

    def write(content):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def empty_folder(tmp_path, libraries):
    return DriverFolder(tmp_path / "driver", libraries)


@pytest.fixture
def driver_folder(empty_folder):
    return empty_folder.add_driver()


@pytest.fixture
def shim(tmp_path, libraries):
    return Path(shutil.copy(libraries / "libcuda-control.so", tmp_path / "libcuda-control.so"))
