"""Find the driver's libraries on this machine; errors keep all folders searched.

A driver is the file that a folder's ``libcuda.so.1`` (or its only ``libcuda.so.<release>``)
resolves to, the ``libnvidia-ml.so.<release>`` of the same release, and every library beside the
two whose name ends in that release. Nothing is loaded or run; :mod:`pyvgpu.volumes.survey` finds a
driver's other files, :mod:`pyvgpu.volumes.mirror_plan` decides about all of them.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
import re
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import catalogue, elf, elf_facts, root
from pyvgpu.volumes import search as searching

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = logging.getLogger(__name__)

_RELEASE = re.compile(r"\d{2,}(?:\.\d+)+", re.ASCII)
# NVML's own version, a text in NVML: the CUDA version, and the driver's release.
_VERSION_OF_NVML = re.compile(rb"\0\d{1,2}\.(\d{3,}(?:\.\d+)+)\0")
_MOST_NVML = 64 << 20
# Under WSL the driver is that of the Windows host, and no file name has the release.
_UNRELEASED = frozenset(("libcuda.so.1", "libcuda.so.1.1", "libnvidia-ml.so.1"))
_PLAIN = re.compile(r"[\w.+-]+", re.ASCII)

_NAMED = 4  # folders without a finding that a message names
_FINDING = " ("  # between a folder and what was found in it

_REMEDY = (
    "Name the folder that holds it with --driver-libraries DIR, or use a simulated device: "
    "--simulate h100"
)


class DriverError(errors.DataError):
    """A file with the name of a driver's library cannot be mirrored."""


class ForeignDriverError(DriverError):
    """A library of the driver, but for another kind of machine."""


class DriverMissingError(errors.UnavailableError):
    """There is no driver in the searched folders."""

    def __init__(self, message: str, searched: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.searched = searched  # the folders, with findings if they were not empty


class DriverUnreadableError(errors.PermissionDeniedError):
    """We may not read the driver's files."""


@dataclasses.dataclass(frozen=True, slots=True)
class DriverFile:
    """One installed library of the driver."""

    path: Path  # the real file, not a symbolic link
    soname: str  # its file name if it has none
    called: str = ""  # the driver's name for it, if the file has another

    @property
    def name(self) -> str:
        """The name in a mirror: usually that of the real file."""
        return self.called or self.path.name


@dataclasses.dataclass(frozen=True, slots=True)
class Originals:
    """The libraries of a driver that the shim replaces: real files, verified, of one release."""

    place: Path  # the folder in which they were found, perhaps as links
    release: str  # driver release, such as 580.65.06
    libcuda: Path
    libnvidia_ml: Path
    found_by: searching.SearchStep = dataclasses.field(
        default=searching.SearchStep.NAMED, kw_only=True
    )

    @property
    def folder(self) -> Path:
        """The folder of the real libcuda."""
        return self.libcuda.parent


@dataclasses.dataclass(frozen=True, slots=True)
class Driver(Originals):
    """A driver's libraries, all of one release."""

    files: tuple[DriverFile, ...]  # all, including the originals, by name


def find_driver(folder: Path | None = None) -> Driver:
    """Return the driver in *folder*, or the one that the loader would find; see `search`.

    Raises DriverMissingError, DriverError or DriverUnreadableError.
    """
    search = searching.search
    found = first_originals(search()) if folder is None else examine(folder.absolute())
    originals = (found.place, found.release, found.libcuda, found.libnvidia_ml)
    return Driver(*originals, _collect(found), found_by=found.found_by)


def first_originals(searched: searching.Searched, remedy: str = _REMEDY) -> Originals:
    """Return the driver in the first of the *searched* folders that has one for this machine.

    One that is damaged or half upgraded is an error and not skipped: any driver after it would not
    be the one that programs load.
    """
    findings = []
    for folder, step in searched.steps.items():
        try:
            return dataclasses.replace(examine(folder, searched.within), found_by=step)
        except DriverMissingError:
            findings.append(root.shown(folder))
        except ForeignDriverError as exc:
            findings.append(f"{root.shown(folder)}{_FINDING}{exc})")
    raise missing(findings, remedy)


def missing(searched: Iterable[str], remedy: str) -> DriverMissingError:
    """Return the error that names the first folders *searched*, all findings, and the remedy."""
    found = tuple(searched)
    named = [x for i, x in enumerate(found) if i < _NAMED or _FINDING in x]
    if len(found) > len(named):
        named.append(f"{len(found) - len(named)} other folders (`pyvgpu doctor` lists them)")
    return DriverMissingError(
        f"no NVIDIA driver found. {remedy}. Searched for libcuda.so.1 in {', '.join(named)}", found
    )


def examine(folder: Path, within: root.Root = root.HOST) -> Originals:
    """Return the driver's originals in *folder*, following links *within* a root.

    Raises DriverMissingError, DriverError or DriverUnreadableError.
    """
    name = root.shown(folder)
    libcuda = _locate((folder,), catalogue.CUDA, within)
    if libcuda is None:
        raise DriverMissingError(
            f"{name}: no libcuda.so.1 in it; must be the folder of the driver's libraries, such "
            "as /usr/lib64"
        )
    libnvidia_ml = _locate((folder, libcuda.parent), catalogue.NVML, within)
    if libnvidia_ml is None:
        raise DriverError(
            f"{name}: it has {libcuda.name} but no libnvidia-ml.so.1; both are required"
        )
    release, other = _read_releases(libcuda, libnvidia_ml)
    if other != release:
        raise DriverError(
            f"{name}: {libcuda.name} is of release {release}, {libnvidia_ml.name} of {other}; "
            "both must be of one driver (is it being upgraded?)"
        )
    return Originals(folder, release, libcuda, libnvidia_ml)


def _list(folder: Path, within: root.Root) -> list[str]:
    try:
        return within.names(folder)
    except FileNotFoundError as exc:
        raise DriverMissingError(f"{root.shown(folder)}: there is no such folder") from exc
    except NotADirectoryError as exc:
        raise DriverError(
            f"{root.shown(folder)}: must be the folder that holds libcuda.so.1, such as /usr/lib64"
        ) from exc
    except OSError as exc:
        raise DriverUnreadableError(
            f"{root.shown(folder)}: cannot be read: {exc.strerror}"
        ) from exc


def _locate(folders: Iterable[Path], stem: str, within: root.Root) -> Path | None:
    """Return the real file of the driver's library *stem*, verified, from the first folder."""
    soname = f"{stem}.so.1"
    for folder in dict.fromkeys(folders):
        names = _list(folder, within)
        if soname in names:
            return _check_library(folder / soname, soname, within)
        released = [name for name in names if release_of(name, stem)]
        if len(released) > 1:
            raise DriverError(
                f"{root.shown(folder)}: it has {' and '.join(released)} and no {soname} that "
                "points to the one in use"
            )
        if released:
            return _check_library(folder / released[0], soname, within)
    return None


def _check_library(path: Path, soname: str, within: root.Root) -> Path:
    """Return the real file behind *path*, which must be the driver's own for this machine."""
    name = root.shown(path)
    try:
        real = within.real(path)
        if not real.is_file():
            raise DriverError(f"{name}: must be a regular file")
        found = elf_facts.read(real)
    except elf.ElfError as exc:
        raise DriverError(str(exc)) from exc
    except FileNotFoundError as exc:
        target = root.shown(path.readlink()) if path.is_symlink() else "it vanished"
        raise DriverError(f"{name}: a dangling symbolic link ({target})") from exc
    except OSError as exc:
        raise DriverUnreadableError(f"{name}: cannot be read: {exc.strerror}") from exc
    here = catalogue.MACHINES.get(platform.machine())
    if found.soname == catalogue.SHIM_SONAME:
        raise DriverError(
            f"{name}: this is pyvgpu's shim, so {root.shown(path.parent)} is a mirror (or this "
            "program runs under `pyvgpu run` already); must be the driver's own folder"
        )
    if found.bits != 64:
        raise ForeignDriverError(f"{name}: a {found.bits}-bit library; must be the 64-bit driver")
    if found.machine != here:
        raise ForeignDriverError(f"{name}: a library for {found.machine}; this machine is {here}")
    if found.kind != "ET_DYN" or found.soname != soname:
        raise DriverError(
            f"{name}: its SONAME is {root.shown(found.soname or 'missing')}; must be {soname}, as "
            "in the driver's own library"
        )
    return real


def release_of(name: str, stem: str) -> str | None:
    """Return the release at the end of the file *name* of library *stem*, if there is one."""
    release = name.removeprefix(f"{stem}.so.")
    return release if release != name and _RELEASE.fullmatch(release) else None


def _read_releases(libcuda: Path, libnvidia_ml: Path) -> tuple[str, str]:
    """Return the driver's release according to each of the two."""
    if {libcuda.name, libnvidia_ml.name} <= _UNRELEASED:
        release = _written_release(libnvidia_ml)
        return release, release
    return _read_release(libcuda, catalogue.CUDA), _read_release(libnvidia_ml, catalogue.NVML)


def _read_release(library: Path, stem: str) -> str:
    release = release_of(library.name, stem)
    if release is None:
        raise DriverError(
            f"{root.shown(library)}: the name of the real file must end in the driver's release, "
            f"such as {stem}.so.580.65.06"
        )
    return release


def _written_release(libnvidia_ml: Path) -> str:
    """Return the release from the text in NVML, if no file name has it."""
    try:
        text = root.read_regular(libnvidia_ml, _MOST_NVML)
    except OSError as exc:
        raise DriverUnreadableError(
            f"{root.shown(libnvidia_ml)}: cannot be read: {exc.strerror}"
        ) from exc
    found = set(_VERSION_OF_NVML.findall(text))
    if len(found) != 1:
        raise DriverError(
            f"{root.shown(libnvidia_ml)}: neither its name nor its contents have the driver's "
            f"release"
        )
    return str(found.pop(), "ascii")


def is_plain(name: str) -> bool:
    """Return whether *name* is a plausible file name of a driver, safe for links."""
    return _PLAIN.fullmatch(name) is not None and name not in (".", "..")


def _collect(originals: Originals) -> tuple[DriverFile, ...]:
    """Return every 64-bit library of the release beside the originals; duplicates once."""
    release, within = originals.release, root.HOST
    checked = (originals.libcuda, originals.libnvidia_ml)
    found = {
        name: _describe(path, called=name)
        for path, (stem, _, _) in zip(checked, catalogue.REPLACED, strict=True)
        for name in [f"{stem}.so.{release}"]
    }
    folders = dict.fromkeys((originals.place, *(path.parent for path in checked)))
    for folder in folders:
        for path in within.matching(folder, f"*.so.{release}"):
            if path.name in found:
                continue
            try:
                if not is_plain(path.name):
                    raise elf.ElfError("no driver has a file of this name")
                file = _describe(within.real(path))
            except (elf.ElfError, OSError) as exc:
                log.warning("left %s out of the driver: %s", root.shown(path), exc)
                continue
            if file:
                found[file.name] = file
    return tuple(file for _, file in sorted(found.items()) if file)


def _describe(path: Path, called: str = "") -> DriverFile | None:
    read = elf_facts.read(path)
    fits = read.bits == 64 and read.machine == catalogue.MACHINES.get(platform.machine())
    soname = read.soname if read.soname and is_plain(read.soname) else path.name
    called = "" if called == path.name else called
    return DriverFile(path, soname, called) if fits else None
