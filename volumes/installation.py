"""Data types of an installed driver: `survey` collects it, `mirror_plan` turns it into a tree."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import search

if TYPE_CHECKING:
    from pathlib import Path, PurePosixPath

SHARED = "shared"
EXCLUSIVE = "exclusive"


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file of the driver, and where it belongs in a tree."""

    path: Path  # the real file, not a symbolic link, as seen by this process
    folder: str  # in the tree, such as lib64, lib (32 bit), lib64/vdpau, bin, share/vulkan/icd.d
    name: str  # in that folder
    links: tuple[str, ...] = ()  # its other names there: the SONAME, and installed links
    capability: str = ""  # the catalogue's: compute, utility, graphics, video, display, ngx

    def __post_init__(self) -> None:
        parts = (*self.folder.split("/"), self.name)
        if {"", ".", ".."}.intersection(parts) or "/" in self.name:
            raise ValueError(f"{self.folder}/{self.name}: must be a path within a tree")


@dataclasses.dataclass(frozen=True, slots=True)
class ConfiguredVolume:
    """A volume to fill with the driver files that a configuration selects."""

    name: str
    base: PurePosixPath  # absolute; the volume's folder is <base>/<name>
    mode: str  # ro or rw
    binaries: tuple[str, ...]  # names
    libraries: tuple[str, ...]  # prefixes of names, such as libcuda.so
    shared: bool  # the shim replaces the driver's CUDA and NVML in it

    def wants_library(self, name: str) -> bool:
        """Return whether the library *name* belongs to it."""
        return name.startswith(self.libraries)


@dataclasses.dataclass(frozen=True, slots=True)
class DriverVolume:
    """A folder of driver files that containers get as a whole."""

    name: str
    shared: bool  # with the shim in place of the driver's CUDA and NVML
    files: tuple[InstalledFile, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-][\w.-]*", self.name, re.ASCII):
            raise errors.DataError(
                f"volume {self.name!r}: must be the name of a folder, such as {SHARED}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Installation:
    """A driver that is installed below a root."""

    root: Path
    release: str  # driver release, such as 580.65.06
    volumes: tuple[DriverVolume, ...]
    remarks: tuple[str, ...] = ()  # a line each: what was left out, and why
    found_by: search.SearchStep = search.SearchStep.NAMED


def volumes_of(files: tuple[InstalledFile, ...]) -> tuple[DriverVolume, ...]:
    """Return the default volumes."""
    return DriverVolume(SHARED, True, files), DriverVolume(EXCLUSIVE, False, files)
