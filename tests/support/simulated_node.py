"""Creates a folder like the root of a node with the simulated driver."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from typing import TYPE_CHECKING

import pytest
import rights

from pyvgpu import shim

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NULL = (1, 3)  # /dev/null's numbers, where a GPU's do not matter


def make(root: Path, nodes: Mapping[str, tuple[int, int]]) -> Path:
    """Install the simulated driver below *root*, with device *nodes* by name; return it."""
    libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    libraries.mkdir(parents=True)
    for file in shim.simulator_libraries().iterdir():
        shutil.copy2(file, libraries / file.name, follow_symlinks=False)
    make_nodes(root / "dev", nodes)
    return root


def rename_driver(root: Path, before: str, after: str) -> None:
    """Rename the driver below *root* to another release, as a package installs it."""
    folder = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    for name in ("libcuda", "libnvidia-ml"):
        (folder / f"{name}.so.{before}").rename(folder / f"{name}.so.{after}")


def make_nodes(dev: Path, nodes: Mapping[str, tuple[int, int]]) -> None:
    """Create the folder *dev* with device *nodes* (name: major, minor); skip if not permitted."""
    dev.mkdir()
    for name, numbers in nodes.items():
        try:
            os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(*numbers))
        except PermissionError:
            pytest.skip(f"{rights.WANTING} us to make device nodes")
        (dev / name).chmod(0o666)


def nodes(devices: int) -> dict[str, tuple[int, int]]:
    """Return the device nodes of *devices* GPUs, and the nodes that all GPUs need."""
    return dict.fromkeys(
        (*(f"nvidia{index}" for index in range(devices)), "nvidiactl", "nvidia-uvm"), NULL
    )
