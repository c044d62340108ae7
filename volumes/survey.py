"""Find all files of a node's driver below a root; errors list all folders searched.

:mod:`pyvgpu.volumes.find` finds the current driver in the folders of :mod:`pyvgpu.volumes.search`,
in the loader's order. Then all files of that release are collected from these folders, and the
other files of :mod:`pyvgpu.volumes.catalogue`. Each file that is left out gets a remark.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import catalogue, extras, find, installation, libraries, root, search

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


_SHIMS_OWN = tuple(f"{stem}.so." for stem, _, _ in catalogue.REPLACED)
_REMEDY = "Name its root with --driver-root DIR, such as /run/nvidia/driver"


@dataclasses.dataclass(frozen=True, slots=True)
class RootFinder:
    """Finds the driver below a root, repeatedly; see :mod:`.follow`."""

    root: Path
    volumes: tuple[installation.ConfiguredVolume, ...] | None = None

    def find(self) -> installation.Installation:
        """Return the driver that is installed now."""
        return find_installation(self.root, self.volumes)

    def folders(self) -> tuple[Path, ...]:
        """Return the folders in which a change may mean another driver."""
        return folders(self.root)


def find_installation(
    path: Path, volumes: Sequence[installation.ConfiguredVolume] | None = None
) -> installation.Installation:
    """Return the current driver below *path*, with the files that *volumes* select.

    Without *volumes* these are all files of the catalogue and all libraries of the release. Raises
    like :func:`pyvgpu.volumes.find.examine`, and UnavailableError if *path* is not a folder.
    """
    places = tuple(_places(root.Root.at(path)))
    place, driver = _current(places)
    prefixes = {prefix for volume in volumes or () for prefix in volume.libraries}
    found = libraries.collect(place.within, place.folders, driver, prefixes)
    besides = extras.Extras(place.within, driver.release)
    wanted = {name for volume in volumes or () for name in volume.binaries}
    files = (*found.files, *besides.binaries(wanted), *besides.data(), *besides.firmware())
    remarks = (*place.remarks, *_others(places, driver), *found.remarks, *besides.remarks)
    return installation.Installation(
        root=place.within.path,
        release=driver.release,
        volumes=(
            installation.volumes_of(files)
            if volumes is None
            else tuple(_select(volume, files) for volume in volumes)
        ),
        remarks=tuple(dict.fromkeys(remarks)),
        found_by=driver.found_by,
    )


def folders(path: Path) -> tuple[Path, ...]:
    """Return the folders, existing or not, in which a change may mean another driver."""
    try:
        host = root.Root.at(path)
    except errors.UnavailableError:  # nothing is mounted there yet
        return path.parent, path
    found: dict[Path, None] = {}
    for place in _places(host):
        found[place.within.outside(catalogue.LOADER_CACHE).parent] = None
        for folder in place.folders:
            below = (folder / name for name in catalogue.SUBFOLDERS)
            passed = _passed(place.within, folder / f"{catalogue.CUDA}.so.1")
            way = _way(place.within, folder)
            found |= dict.fromkeys((folder, *below, *passed, *way))
        found |= dict.fromkeys(extras.folders(place.within))
    return tuple(found)


def _way(within: root.Root, folder: Path) -> Iterator[Path]:
    """Yield the links in the path of *folder*, and its target: NixOS' /run/opengl-driver."""
    links = [path for path in (folder, *folder.parents) if path.is_symlink()]
    yield from (path for path in links if path.is_relative_to(within.path))
    with contextlib.suppress(OSError):
        yield within.real(folder)


def _passed(within: root.Root, path: Path) -> Iterator[Path]:
    """Yield the folders of all links in the chain of *path*: Debian's alternatives."""
    with contextlib.suppress(OSError):
        for _ in range(root.MOST_LINKS):
            folder = within.real(path.parent)
            yield folder
            target = (folder / path.name).readlink()
            path = within.outside(target) if target.is_absolute() else folder / target


def _places(host: root.Root) -> Iterator[search.Searched]:
    for name in catalogue.DRIVER_ROOTS:
        try:
            within = root.Root(host.real(host.outside(name)))
        except OSError:
            within = root.Root(host.outside(name))  # does not exist yet, but may later
        yield search.search(within)


def _current(places: Sequence[search.Searched]) -> tuple[search.Searched, find.Originals]:
    """Return the driver that programs load, and its root."""
    searched: list[str] = []
    for place in places:
        try:
            return place, find.first_originals(place, _REMEDY)
        except find.DriverMissingError as exc:
            searched += (place.cache, *exc.searched)
    raise find.missing(searched, _REMEDY)


def _others(places: Sequence[search.Searched], driver: find.Originals) -> Iterator[str]:
    """Yield remarks on other installed releases, which are left out."""
    others: dict[str, Path] = {}
    for place in places:
        for folder in dict.fromkeys((*place.folders, driver.folder)):
            for path in _released(place.within, folder):
                release = path.name.removeprefix(f"{catalogue.CUDA}.so.")
                if release != driver.release:
                    others.setdefault(release, path)
    for release, path in others.items():
        yield (
            f"release {release} ({root.shown(path)}) is left out: the current one is "
            f"{driver.release} ({root.shown(driver.libcuda)})"
        )


def _released(within: root.Root, folder: Path) -> Iterator[Path]:
    try:
        for path in within.matching(folder, f"{catalogue.CUDA}.so.*"):
            if find.release_of(path.name, catalogue.CUDA):
                yield path
    except (OSError, ValueError):
        return


def _select(
    volume: installation.ConfiguredVolume, files: Iterable[installation.InstalledFile]
) -> installation.DriverVolume:
    """Return *volume* with the *files* that it selects; a shared one always has the originals."""
    selected = tuple(
        file
        for file in files
        if (file.folder == "bin" and file.name in volume.binaries)
        or (file.folder.startswith("lib") and volume.wants_library(file.name))
        or (volume.shared and file.folder == "lib64" and file.name.startswith(_SHIMS_OWN))
    )
    return installation.DriverVolume(volume.name, volume.shared, selected)
