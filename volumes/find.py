"""Find the driver's libraries on this machine, or say everywhere they are not.

A driver is what a folder's ``libcuda.so.1`` (or its one ``libcuda.so.<release>``) resolves to,
the ``libnvidia-ml.so.<release>`` of the same release, and every library beside the two whose
name ends in that release. Nothing is loaded or run; what becomes of the files is decided in
:mod:`pyvgpu.volumes.plan`.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import catalogue, elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

_RELEASE = re.compile(r"\d+(?:\.\d+)+", re.ASCII)


class DriverError(errors.DataError):
    """What is called a driver's library is not one that can be mirrored."""


class ForeignDriverError(DriverError):
    """A library of the driver, but for another kind of machine."""


class DriverMissingError(errors.UnavailableError):
    """There is no driver where we looked."""

    def __init__(self, message: str, looked: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.looked = looked  # the folders, with what was there if it was not nothing


class DriverUnreadableError(errors.PermissionDeniedError):
    """The file system does not let us read the driver."""


@dataclasses.dataclass(frozen=True, slots=True)
class DriverFile:
    """One library of the driver, as it is installed."""

    path: Path  # the real file, no symbolic link
    soname: str  # its file name where it has none

    @property
    def name(self) -> str:
        """The name of the real file."""
        return self.path.name


@dataclasses.dataclass(frozen=True, slots=True)
class Driver:
    """A driver's libraries, all of one release."""

    folder: Path  # of the real libcuda
    release: str  # driver release, such as 580.65.06
    libcuda: Path
    libnvidia_ml: Path
    files: tuple[DriverFile, ...]  # all of them, these two included, by name


def find_driver(folder: Path | None = None) -> Driver:
    """Return the driver in *folder*, or the one in the usual folders.

    Raises DriverMissingError, DriverError or DriverUnreadableError.
    """
    return first_driver(search_folders()) if folder is None else _examine(folder.absolute())


def first_driver(folders: Iterable[Path]) -> Driver:
    """Return the driver in the first of *folders* that has one for this machine.

    One that is damaged or half upgraded is an error and not passed over: whatever driver came
    after it would not be the one that programs load.
    """
    findings = []
    for folder in folders:
        try:
            return _examine(folder)
        except DriverMissingError:
            findings.append(str(folder))
        except ForeignDriverError as exc:
            findings.append(f"{folder} ({exc})")
    raise DriverMissingError(
        f"no NVIDIA driver found; looked for libcuda.so.1 in {', '.join(findings)}. Name the "
        "folder that holds it with --driver-libraries DIR, or use a simulated device: "
        "--simulate h100",
        tuple(findings),
    )


def search_folders(
    usual: Iterable[Path] = catalogue.USUAL_FOLDERS,
    configuration: Path = catalogue.LOADER_CONFIGURATION,
) -> tuple[Path, ...]:
    """Return the folders to look in: the usual ones, then those *configuration* names."""
    return tuple(dict.fromkeys((*usual, *_configured(configuration, depth=4))))


def _configured(configuration: Path, depth: int) -> Iterator[Path]:
    """Read a configuration of the loader as ldconfig does: a folder a line, and includes."""
    try:
        lines = configuration.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        words = line.partition("#")[0].split()
        if words[:1] == ["include"] and depth:
            for pattern in words[1:]:
                base = configuration.parent / pattern
                for path in sorted(Path(base.anchor).glob(str(base.relative_to(base.anchor)))):
                    yield from _configured(path, depth - 1)
        elif len(words) == 1 and words[0].startswith("/"):
            yield Path(words[0])


def _examine(folder: Path) -> Driver:
    libcuda = _locate((folder,), catalogue.CUDA)
    if libcuda is None:
        raise DriverMissingError(
            f"{folder}: no libcuda.so.1 in it; the folder that holds the driver's libraries is "
            "wanted, such as /usr/lib64"
        )
    release = _read_release(libcuda, catalogue.CUDA)
    libnvidia_ml = _locate((folder, libcuda.parent), catalogue.NVML)
    if libnvidia_ml is None:
        raise DriverError(
            f"{folder}: it holds {libcuda.name} but no libnvidia-ml.so.1; both are wanted"
        )
    other = _read_release(libnvidia_ml, catalogue.NVML)
    if other != release:
        raise DriverError(
            f"{folder}: {libcuda.name} is of release {release}, {libnvidia_ml.name} of {other}; "
            "both must be of one driver (is it being upgraded?)"
        )
    folders = dict.fromkeys((folder, libcuda.parent, libnvidia_ml.parent))
    return Driver(
        folder=libcuda.parent,
        release=release,
        libcuda=libcuda,
        libnvidia_ml=libnvidia_ml,
        files=_collect(folders, release, (libcuda, libnvidia_ml)),
    )


def _list(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError as exc:
        raise DriverMissingError(f"{folder}: there is no such folder") from exc
    except NotADirectoryError as exc:
        raise DriverError(
            f"{folder}: must be the folder that holds libcuda.so.1, such as /usr/lib64"
        ) from exc
    except OSError as exc:
        raise DriverUnreadableError(f"{folder}: cannot be read: {exc.strerror}") from exc


def _locate(folders: Iterable[Path], stem: str) -> Path | None:
    """Return the real file of the driver's library *stem*, checked, from the first folder."""
    soname = f"{stem}.so.1"
    for folder in dict.fromkeys(folders):
        names = _list(folder)
        if soname in names:
            return _check_library(folder / soname, soname)
        released = [name for name in names if _release_of(name, stem)]
        if len(released) > 1:
            raise DriverError(
                f"{folder}: it holds {' and '.join(released)} and no {soname} that says which "
                "one is in use"
            )
        if released:
            return _check_library(folder / released[0], soname)
    return None


def _check_library(path: Path, soname: str) -> Path:
    """Return the real file behind *path*, which must be the driver's own for this machine."""
    try:
        real = path.resolve(strict=True)
        if not real.is_file():
            raise DriverError(f"{path}: must be a regular file")
        found = elf.read_elf(real)
    except elf.ElfError as exc:
        raise DriverError(str(exc)) from exc
    except FileNotFoundError as exc:
        raise DriverError(f"{path}: a symbolic link to nothing ({path.readlink()})") from exc
    except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle
        reason = getattr(exc, "strerror", None) or str(exc)
        raise DriverUnreadableError(f"{path}: cannot be read: {reason}") from exc
    here = catalogue.MACHINES.get(platform.machine())
    if found.soname == catalogue.SHIM_SONAME:
        raise DriverError(
            f"{path}: this is pyvgpu's shim, so {path.parent} is a mirror (or this program runs "
            "under `pyvgpu run` already); the driver's own folder is wanted"
        )
    if found.bits != 64:
        raise ForeignDriverError(
            f"{path}: a {found.bits}-bit library; the 64-bit driver is wanted"
        )
    if found.machine != here:
        raise ForeignDriverError(f"{path}: a library for {found.machine}; this machine is {here}")
    if found.kind != "ET_DYN" or found.soname != soname:
        raise DriverError(
            f"{path}: its SONAME is {found.soname}; the driver's own library says {soname}"
        )
    return real


def _release_of(name: str, stem: str) -> str | None:
    release = name.removeprefix(f"{stem}.so.")
    return release if release != name and _RELEASE.fullmatch(release) else None


def _read_release(library: Path, stem: str) -> str:
    release = _release_of(library.name, stem)
    if release is None:
        raise DriverError(
            f"{library}: the name of the real file must end in the driver's release, such as "
            f"{stem}.so.580.65.06"
        )
    return release


def _collect(
    folders: Iterable[Path], release: str, checked: tuple[Path, ...]
) -> tuple[DriverFile, ...]:
    """Return every 64-bit library of *release* in *folders*; of two alike the first."""
    found = {path.name: _describe(path) for path in checked}
    for folder in folders:
        for path in sorted(folder.glob(f"*.so.{release}")):
            if path.name in found:
                continue
            try:
                file = _describe(path.resolve(strict=True))
            except (elf.ElfError, OSError, RuntimeError) as exc:
                log.warning("left %s out of the driver: %s", path, exc)
                continue
            if file:
                found[file.name] = file
    return tuple(file for _, file in sorted(found.items()) if file)


def _describe(path: Path) -> DriverFile | None:
    facts = elf.read_elf(path)
    fits = facts.bits == 64 and facts.machine == catalogue.MACHINES.get(platform.machine())
    return DriverFile(path, facts.soname or path.name) if fits else None
