"""Builds the driver installation of a folder of libraries, without searching the system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.volumes import find, installation

if TYPE_CHECKING:
    from pathlib import Path


def installation_of(folder: Path) -> installation.Installation:
    """Return the driver in *folder* as an installation with the two usual volumes."""
    found = find.find_driver(folder)
    files = tuple(
        installation.InstalledFile(file.path, "lib64", file.name, (file.soname,))
        for file in found.files
    )
    return installation.Installation(folder, found.release, installation.volumes_of(files))
