"""Decide what a mirror of a driver holds; pure, for :mod:`pyvgpu.volumes.mirror` to make.

    lib64/   libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so    the shim, one inode
             libnvidia-x.so.580.65.06, libnvidia-x.so.1 -> it             the driver's others
    origin/  libcuda.so.580.65.06, libcuda-origin.so.1 -> it              the originals
             libnvidia-ml.so.580.65.06, libnvidia-ml-origin.so.1 -> it
             libnvidia-x.so.1 -> ../lib64/libnvidia-x.so.580.65.06        their siblings

The shim needs the originals by their private names and finds them in ``$ORIGIN/../origin``.
An original's SONAME never leads to it by file name, in neither folder.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.volumes import catalogue

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.volumes import find

LIB64 = "lib64"
ORIGIN = "origin"


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    """A regular file of the tree, with the content of *source*."""

    path: str  # within the tree
    source: Path
    ours: bool = False  # the shim: always a copy, since a build may write to the original


@dataclasses.dataclass(frozen=True, slots=True)
class OtherName:
    """One more name (a hard link) of a file of the tree."""

    path: str
    file: str


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, relative, to another entry of the tree."""

    path: str
    target: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A mirror as data: every path is named once, and links come after what they name."""

    release: str
    entries: tuple[File | OtherName | Link, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """The entries whose content comes from outside."""
        return tuple(entry for entry in self.entries if isinstance(entry, File))


def plan(driver: find.Driver, shim: Path) -> Plan:
    """Return the mirror of *driver* with *shim* in the place of its CUDA and NVML."""
    shim_path = f"{LIB64}/{names.SHIM_NAMES[0]}"
    entries: list[File | OtherName | Link] = [File(shim_path, shim, ours=True)]
    entries += [OtherName(f"{LIB64}/{name}", shim_path) for name in names.SHIM_NAMES[1:]]
    originals = {driver.libcuda.name, driver.libnvidia_ml.name}
    for file in driver.files:
        folder = ORIGIN if file.name in originals else LIB64
        entries.append(File(f"{folder}/{file.name}", file.path))
    for stem, _, private in catalogue.REPLACED:
        entries.append(Link(f"{ORIGIN}/{private}", f"{stem}.so.{driver.release}"))
    # A SONAME is text out of somebody else's file. One that is taken (the shim's names above
    # all) or no file name is left out; the library stays reachable by its own name.
    taken = {entry.path for entry in entries}
    for file in driver.files:
        if file.name in originals:
            continue
        links = {f"{LIB64}/{file.soname}", f"{ORIGIN}/{file.soname}"}
        if not links & taken and "/" not in file.soname and ".so" in file.soname:
            taken |= links
            entries.append(Link(f"{LIB64}/{file.soname}", file.name))
            entries.append(Link(f"{ORIGIN}/{file.soname}", f"../{LIB64}/{file.name}"))
        entries.append(Link(f"{ORIGIN}/{file.name}", f"../{LIB64}/{file.name}"))
    return Plan(driver.release, tuple(entries))
