"""Collect the libraries of one driver release from all folders that may have some.

These are all libraries whose name ends in the release, and those with their own version that the
catalogue or a configuration lists. Of two libraries with the same SONAME the first is taken, as
the loader does.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.volumes import catalogue, elf, elf_facts, find, installation, root

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_FOLDER = "lib64"
_FOLDER_32 = "lib"

_OWN_VERSION = frozenset(stem for stems in catalogue.OWN_VERSION.values() for stem in stems)
_CAPABILITIES = {
    stem: capability.value
    for table in (catalogue.OWN_VERSION, catalogue.RELEASED)
    for capability, stems in table.items()
    for stem in stems
}
_NOT_MESA = re.compile(catalogue.NOT_MESA)
_VERSION = re.compile(r"(?:\.\d+)*", re.ASCII)
_KEPT_SUBFOLDERS = ("vdpau",)  # programs look for these libraries in a folder of that name


@dataclasses.dataclass(frozen=True, slots=True)
class DriverLibraries:
    """The 64-bit and 32-bit libraries of a driver, and remarks on those left out."""

    files: tuple[installation.InstalledFile, ...]
    remarks: tuple[str, ...]


def collect(
    within: root.Root,
    folders: Sequence[Path],
    driver: find.Originals,
    prefixes: Iterable[str] = (),
) -> DriverLibraries:
    """Return the libraries of *driver* in *folders*, and those with a name in *prefixes*.

    Raises DriverUnreadableError if we may not read a library of the release: a mirror without it
    would be incomplete.
    """
    collector = _Collector(within, driver, tuple(prefixes))
    originals = (
        (driver.libcuda, catalogue.CUDA, names.LIBCUDA),
        (driver.libnvidia_ml, catalogue.NVML, names.LIBNVIDIA_ML),
    )
    for path, stem, soname in originals:
        collector.add_original(path, f"{stem}.so.{driver.release}", soname)
    own = (driver.folder, driver.libnvidia_ml.parent)
    for folder in dict.fromkeys((*own, *folders)):
        collector.search(folder)
        for name in catalogue.SUBFOLDERS:
            collector.search(folder / name)
    return DriverLibraries(tuple(collector.files()), tuple(collector.remarks))


class _Collector:
    """Collects the libraries."""

    def __init__(
        self, within: root.Root, driver: find.Originals, prefixes: tuple[str, ...]
    ) -> None:
        self.remarks: dict[str, None] = {}
        self._within = within
        self._release = driver.release
        self._prefixes = prefixes
        # Under WSL no name has the release, so all listed libraries are taken by name alone.
        self._by_name = not driver.libcuda.name.endswith(driver.release)
        self._files: dict[Path, installation.InstalledFile] = {}
        self._left_out: set[Path] = set()
        self._sonames: set[str] = set()  # with their folder, to take each once
        self._searched: set[Path] = set()

    def files(self) -> list[installation.InstalledFile]:
        return sorted(self._files.values(), key=lambda file: (file.folder, file.name))

    def add_original(self, path: Path, name: str, soname: str) -> None:
        """Add one of the two libraries that the shim replaces; it is already verified."""
        self._put(path, _FOLDER, name, soname)

    def search(self, folder: Path) -> None:
        """Add the libraries in *folder*, unless it was searched already or does not exist."""
        try:
            real = self._within.real(folder)
            listed = self._within.names(real)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:
            self._leave_out(folder, folder, f"cannot be read: {exc.strerror}")
            return
        if real in self._searched:
            return
        self._searched.add(real)
        # Short names first: the target of a name without the full version is the one in use.
        for name in sorted(listed, key=lambda name: (len(name), name)):
            if self._is_wanted(name):
                self._take(real / name)
        self._take_links(real, listed)

    def _is_wanted(self, name: str) -> bool:
        stem, dot_so, version = name.partition(".so")
        if name.endswith(f".so.{self._release}"):
            return True
        if not dot_so or not _VERSION.fullmatch(version) or find.release_of(name, stem):
            return False
        return (
            stem in _OWN_VERSION
            or (self._by_name and stem in _CAPABILITIES)
            or (bool(self._prefixes) and name.startswith(self._prefixes))
        )

    def _take(self, path: Path) -> None:
        """Add the library that *path* resolves to, or a remark."""
        try:
            real = self._within.real(path)
            if real in self._files or real in self._left_out:
                return
            reason = self._refuse(path, real)
        except elf.ElfError as exc:
            reason = str(exc).removeprefix(f"{root.shown(real)}: ")
        except FileNotFoundError:
            self._leave_out(path, path, "a dangling symbolic link")
            return
        except OSError as exc:
            if not path.name.endswith(self._release):
                self._leave_out(path, path, f"cannot be read: {exc.strerror}")
                return
            raise find.DriverUnreadableError(
                f"{root.shown(path)}: cannot be read: {exc.strerror}"
            ) from exc
        if reason is not None:
            self._leave_out(path, real, reason)

    def _refuse(self, path: Path, real: Path) -> str | None:
        """Add the file *real*, or return the reason for leaving it out."""
        if not find.is_plain(real.name):
            return "no driver has a file of this name"
        stem = real.name.partition(".so")[0]
        if find.release_of(real.name, stem) not in (None, self._release):
            self._left_out.add(real)  # of another driver, which gets one remark as a whole
            return None
        library = elf_facts.read(real)
        if library.soname == catalogue.SHIM_SONAME:
            return "it is pyvgpu's shim"
        folder = _folder_for(library)
        if folder is None:
            return f"a {library.bits}-bit library for {library.machine}"
        if stem in catalogue.MESA_TOO and not any(map(_NOT_MESA.fullmatch, library.needed)):
            return "neither NVIDIA's nor GLVND's"
        if stem == catalogue.TLS and library.kernel < catalogue.TLS_ABI:
            return "for systems without thread-local storage"
        if path.parent.name in _KEPT_SUBFOLDERS:
            folder = f"{folder}/{path.parent.name}"
        soname = library.soname if library.soname and find.is_plain(library.soname) else real.name
        if f"{folder}/{soname}" in self._sonames:
            self._left_out.add(real)  # the loader would not reach it
            return None
        self._put(real, folder, real.name, soname)
        return None

    def _put(self, path: Path, folder: str, name: str, soname: str) -> None:
        stem = name.partition(".so")[0]
        links = [] if soname == name else [soname]
        if stem == "libGLX_nvidia":
            links.append("libGLX_indirect.so.0")  # the name for GLVND's indirect rendering
        self._sonames.add(f"{folder}/{soname}")
        self._files[path] = installation.InstalledFile(
            path, folder, name, tuple(links), _CAPABILITIES.get(stem, "")
        )

    def _take_links(self, folder: Path, listed: Iterable[str]) -> None:
        """Add the names of links in *folder* to the libraries that were added."""
        stems = {path.name.partition(".so")[0] for path in self._files}
        for name in sorted(listed):
            link = folder / name
            if name.partition(".so")[0] not in stems or not link.is_symlink():
                continue
            try:
                file = self._files.get(real := self._within.real(link))
            except OSError:
                continue
            if file and name not in (file.name, *file.links) and find.is_plain(name):
                links = (*file.links, name)
                self._files[real] = dataclasses.replace(file, links=links)

    def _leave_out(self, path: Path, real: Path, reason: str) -> None:
        self._left_out.add(real)
        self.remarks[f"left out {root.shown(path)}: {reason}"] = None


def _folder_for(library: elf.Elf) -> str | None:
    """Return the folder of a tree for a library; None if no program on this machine loads it."""
    if library.kind != "ET_DYN":
        return None
    here = platform.machine()
    if (library.bits, library.machine) == (64, catalogue.MACHINES.get(here)):
        return _FOLDER
    if (library.bits, library.machine) == (32, catalogue.MACHINES_32.get(here)):
        return _FOLDER_32
    return None
