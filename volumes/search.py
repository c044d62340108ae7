"""The folders in which a driver is searched for, below a root, in the order of the loader.

``STEPS`` is that order. Each folder has the step that named it, so a found driver says how it was
found.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import catalogue, ldcache, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_MOST_CONFIGURATION_BYTES = 1 << 20


class SearchStep(enum.StrEnum):
    """How a driver's folder was found."""

    NAMED = "as given"
    CACHE = "by the loader's cache"
    USUAL = "in a usual folder"
    CONFIGURATION = "by the loader's configuration"
    PATTERN = "in a distribution's folder"


@dataclasses.dataclass(frozen=True, slots=True)
class Searched:
    """Where the driver of a root may be."""

    within: root.Root
    # Folders of libraries, in the loader's order; some may not exist.
    steps: Mapping[Path, SearchStep]
    cache: str  # path of the loader's cache, with the error if it cannot be used
    remarks: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders, in the loader's order."""
        return tuple(self.steps)


class _Cache:
    """The loader's cache of a root, and what is wrong with it."""

    def __init__(self, within: root.Root) -> None:
        self.within = within
        path = within.outside(catalogue.LOADER_CACHE)
        self.label = root.shown(path)
        self.remarks: tuple[str, ...] = ()
        self.folders: tuple[Path, ...] = ()
        try:
            self.folders = tuple(_cached_folders(ldcache.read(within.real(path)), within))
        except FileNotFoundError:
            self.label += " (missing)"
        except (OSError, ldcache.CacheError) as exc:
            reason = str(exc) if isinstance(exc, errors.PyVgpuError) else exc.strerror
            self.label += f" ({reason})"
            self.remarks = (f"searched without the loader's cache, {self.label}",)


def _usual(cache: _Cache) -> Iterator[Path]:
    yield from (cache.within.outside(folder) for folder in catalogue.USUAL_FOLDERS)


def _configured(cache: _Cache) -> Iterator[Path]:
    within = cache.within
    yield from _folders_of_file(within.outside(catalogue.LOADER_CONFIGURATION), within, seen=set())


def _folders_of_file(configuration: Path, within: root.Root, seen: set[Path]) -> Iterator[Path]:
    """Yield the folders of a file like /etc/ld.so.conf, parsed like ldconfig; none if unreadable.

    It has a folder per line, and includes; each file is read once.
    """
    try:
        real = within.real(configuration)
        text = root.read_regular(real, _MOST_CONFIGURATION_BYTES)
    except OSError:
        return
    if real in seen:
        return
    seen.add(real)
    for line in os.fsdecode(text).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                base = configuration.parent if pattern[0] != "/" else within.path
                for path in within.matching(base, pattern.lstrip("/")):
                    yield from _folders_of_file(path, within, seen)
        elif len(words) == 1 and words[0].startswith("/"):
            yield within.outside(words[0])


def _patterns(cache: _Cache) -> Iterator[Path]:
    for each in catalogue.MORE_FOLDERS:
        pattern = str(each).lstrip("/")
        if "*" in pattern:
            yield from cache.within.matching(cache.within.path, pattern)
        else:
            yield cache.within.path / pattern


STEPS: tuple[tuple[SearchStep, Callable[[_Cache], Iterable[Path]]], ...] = (
    (SearchStep.CACHE, lambda cache: cache.folders),
    (SearchStep.USUAL, _usual),
    (SearchStep.CONFIGURATION, _configured),
    (SearchStep.PATTERN, _patterns),
)


def search(within: root.Root = root.HOST) -> Searched:
    """Return the folders in which the driver of a root may be."""
    cache = _Cache(within)
    found: dict[Path, SearchStep] = {}
    for step, folders in STEPS:
        for folder in folders(cache):
            found.setdefault(folder, step)
    return Searched(within, found, cache.label, cache.remarks)


def _cached_folders(entries: Iterable[ldcache.CacheEntry], within: root.Root) -> Iterator[Path]:
    """Yield the folders of the driver's libraries, beginning with the loader's libcuda.

    Folders of glibc-hwcaps come last: NVIDIA has none.
    """
    driver = [
        entry
        for entry in entries
        if entry.path.startswith("/") and entry.name.startswith(catalogue.BEGINNINGS)
    ]
    first = (catalogue.CUDA, catalogue.NVML)
    driver.sort(key=lambda entry: (not entry.name.startswith(first), entry.hwcap is not None))
    for entry in driver:
        yield within.outside(entry.path).parent
