"""Plan the contents of a driver mirror; pure, :mod:`pyvgpu.volumes.mirror_store` creates it.

    lib64/   libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so    the shim, one inode
             libnvidia-x.so.580.65.06, libnvidia-x.so.1 -> it             the driver's others
    origin/  libcuda.so.580.65.06, libcuda-origin.so.1 -> it              the originals
             libnvidia-ml.so.580.65.06, libnvidia-ml-origin.so.1 -> it
             libnvidia-x.so.1 -> ../lib64/libnvidia-x.so.580.65.06        their siblings

The shim needs the originals under their private names and finds them in ``$ORIGIN/../origin``.
No file named like an original's SONAME points to the original, in either folder.

The mirror of a node has such a tree in one folder, for containers that share a device, and the
unmodified driver in another, for containers with whole devices. Both have ``bin``, ``share`` and
the driver's other files; only the first has ``region``, an empty mount point for a container's
region, and only the second ``lib``, for 32-bit programs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu import errors, names
from pyvgpu.volumes import catalogue, installation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyvgpu.volumes import find

LIB64 = "lib64"
LIB32 = "lib"
ORIGIN = "origin"
REGION = "region"  # beside the shim's folder; the shim looks for its quota there


class PlanError(errors.DataError):
    """The installed driver cannot be mirrored."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedFile:
    """A regular file of the tree, with the content of *source*."""

    path: str  # within the tree
    source: Path
    ours: bool = False  # the shim: always a copy, because a build may write to the original


@dataclasses.dataclass(frozen=True, slots=True)
class OtherName:
    """Another name (a hard link) of a file of the tree."""

    path: str
    file: str


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedLink:
    """A relative symbolic link to another entry of the tree."""

    path: str
    target: str


Entry: TypeAlias = PlannedFile | OtherName | PlannedLink


@dataclasses.dataclass(frozen=True, slots=True)
class MirrorPlan:
    """A mirror as data: paths are unique, and links come after their targets."""

    release: str
    entries: tuple[Entry, ...]
    empty: tuple[str, ...] = ()  # empty folders, in folders that also have entries

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders of the tree, each after its parent."""
        found: dict[str, None] = {}
        for entry in self.entries:
            parts = entry.path.split("/")[:-1]
            found |= dict.fromkeys("/".join(parts[: n + 1]) for n in range(len(parts)))
        return (*found, *self.empty)

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The entries with content from outside the tree."""
        return tuple(entry for entry in self.entries if isinstance(entry, PlannedFile))


@dataclasses.dataclass(frozen=True, slots=True)
class NodePlan:
    """The plan of a node's mirror, with remarks."""

    plan: MirrorPlan
    remarks: tuple[str, ...]  # a line each: what was left out, and why


def plan(driver: find.Driver, shim: Path) -> MirrorPlan:
    """Return the mirror of *driver* with *shim* in place of its CUDA and NVML."""
    files = [
        installation.InstalledFile(file.path, LIB64, file.name, (file.soname,))
        for file in driver.files
    ]
    return MirrorPlan(driver.release, tuple(_Folder("").with_shim(files, driver.release, shim)))


def plan_node(found: installation.Installation, shim: Path) -> NodePlan:
    """Return the mirror of *found*: a folder for each volume, *shim* in those that are shared.

    Raises PlanError.
    """
    entries: list[Entry] = []
    remarks = list(found.remarks)
    for volume in found.volumes:
        folder = _Folder(f"{volume.name}/")
        if not volume.shared:
            entries += folder.without_shim(volume.files, found.release)
            continue
        files = [file for file in volume.files if not _is_32_bit(file)]
        left_out = len(volume.files) - len(files)
        if left_out:
            remarks.append(
                f"{volume.name}: without the {left_out} 32-bit libraries of the driver, because "
                "there is no 32-bit shim"
            )
        present = {file.name for file in files}
        for original in _originals(found.release):
            if original not in present:
                raise PlanError(
                    f"{volume.name}: without {original}; a volume with the shim needs the "
                    "driver's own libcuda and libnvidia-ml"
                )
        entries += folder.with_shim(files, found.release, shim)
    empty = tuple(f"{volume.name}/{REGION}" for volume in found.volumes if volume.shared)
    return NodePlan(MirrorPlan(found.release, tuple(entries), empty), tuple(remarks))


class _Folder:
    """Collects the entries of one folder of a mirror, with unique paths."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._entries: dict[str, Entry] = {}

    def with_shim(
        self, files: Sequence[installation.InstalledFile], release: str, shim: Path
    ) -> Iterable[Entry]:
        first, *others = (f"{self._prefix}{LIB64}/{name}" for name in names.SHIM_NAMES)
        self._put(PlannedFile(first, shim, ours=True))
        for name in others:
            self._put(OtherName(name, first))
        originals = _originals(release)
        files = [
            file
            for file in files
            if f"{self._prefix}{file.folder}/{file.name}" not in self._entries
        ]
        for file in files:
            self._put_file(ORIGIN if file.name in originals else file.folder, file)
        for stem, _, private in catalogue.REPLACED:
            self._put_link(f"{ORIGIN}/{private}", f"{stem}.so.{release}")
        for file in files:
            if file.name in originals:
                continue
            self._put_names(file, file.links, also=ORIGIN if file.folder == LIB64 else None)
            if file.folder == LIB64:
                self._put_link(f"{ORIGIN}/{file.name}", f"../{LIB64}/{file.name}")
        return self._entries.values()

    def without_shim(
        self, files: Sequence[installation.InstalledFile], release: str
    ) -> Iterable[Entry]:
        more = {
            f"{stem}.so.{release}": (soname, f"{stem}.so")
            for stem, soname, _ in catalogue.REPLACED
        }
        for file in files:
            self._put_file(file.folder, file)
        for file in files:
            self._put_names(file, (*file.links, *more.get(file.name, ())))
        return self._entries.values()

    def _put_names(
        self, file: installation.InstalledFile, links: Iterable[str], also: str | None = None
    ) -> None:
        """Link *links* to *file* in its folder, and in the folder *also*.

        A SONAME is untrusted text. One that is in use already (above all the shim's names) or not
        a file name is left out; the library stays reachable by its own name.
        """
        for link in links:
            if "/" in link or ".so" not in link:
                continue
            wanted = {f"{file.folder}/{link}": file.name}
            if also is not None:
                wanted[f"{also}/{link}"] = f"../{file.folder}/{file.name}"
            if not any(f"{self._prefix}{path}" in self._entries for path in wanted):
                for path, target in wanted.items():
                    self._put_link(path, target)

    def _put_file(self, folder: str, file: installation.InstalledFile) -> None:
        self._put(PlannedFile(f"{self._prefix}{folder}/{file.name}", file.path))

    def _put_link(self, path: str, target: str) -> None:
        self._put(PlannedLink(f"{self._prefix}{path}", target))

    def _put(self, entry: Entry) -> None:
        self._entries.setdefault(entry.path, entry)


def _originals(release: str) -> frozenset[str]:
    return frozenset(f"{stem}.so.{release}" for stem, _, _ in catalogue.REPLACED)


def _is_32_bit(file: installation.InstalledFile) -> bool:
    return file.folder == LIB32 or file.folder.startswith(f"{LIB32}/")
