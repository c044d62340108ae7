"""What pyvgpu leaves on one machine: caches, simulated machines, reservations, generated files.

A user's own traces, or those of all users if root asks. The homes of other users are left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.machine import mounts
from pyvgpu.run import run_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_COMPLETIONS = (  # below the home: where docs/completion.md puts them
    ".local/share/bash-completion/completions/pyvgpu",
    ".zfunc/_pyvgpu",
    ".config/fish/completions/pyvgpu.fish",
)
_KINDS = (names.RUN_KIND, names.MACHINE_KIND)


@dataclasses.dataclass(frozen=True, slots=True)
class MachinePlaces:
    """The folders in which traces can be."""

    registries: tuple[Path, ...] = (names.ROOT_REGISTRY, names.SHARED_REGISTRY)
    specifications: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    memory: tuple[Path, ...] = (Path("/dev/shm"), Path("/tmp"))  # noqa: S108 - owners are checked
    cache: Path = Path("/var/tmp")  # noqa: S108 - owners are checked


@dataclasses.dataclass(frozen=True, slots=True)
class Leftover:
    """One file or folder, and what it is."""

    path: Path
    what: str


def find(environment: Mapping[str, str], places: MachinePlaces) -> tuple[Leftover, ...]:
    """Return the traces that the caller may remove, in order of their removal.

    *environment* names the home and the cache folder. Links and files of other users are left
    out; root's list has them, too.
    """
    found = (
        *_caches(environment, places),
        *_simulated(places),
        *_generated(environment, places),
        *_registries(places),
    )
    return tuple({trace.path: trace for trace in found if _is_ours(trace.path)}.values())


def mount_point(trace: Leftover) -> Path | None:
    """Return a mount point that *trace* is, or has below it, the innermost first; or None."""
    real = os.path.realpath(trace.path)
    return max((point for point in mounts.points() if point.is_relative_to(real)), default=None)


def remove(trace: Leftover) -> None:
    """Remove *trace*; UnavailableError, or PermissionDeniedError, if that fails.

    Links in it are removed, not followed. A registry stays if it has entries of other users. Of
    a folder with a mount point nothing is removed, since the files there may be others'.
    """
    point = mount_point(trace)
    if point is not None:
        raise errors.UnavailableError(
            f"{trace.path}: cannot be removed: {point} is a mount point; unmount it first "
            f"(`umount {point}`, as root), then repeat this command"
        )
    try:
        if trace.path.is_dir():
            shutil.rmtree(trace.path)
        else:
            trace.path.unlink()
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise errors.of_files(f"{trace.path}: cannot be removed", exc) from exc


def _caches(environment: Mapping[str, str], places: MachinePlaces) -> Iterator[Leftover]:
    what = "copies of the driver's libraries"
    for path in run_files.caches(environment):
        yield Leftover(path, what)
    for path in sorted(places.cache.glob("pyvgpu-[0-9]*")):
        yield Leftover(path, what)


def _simulated(places: MachinePlaces) -> Iterator[Leftover]:
    for folder in places.memory:
        for path in sorted(folder.glob("pyvgpu-simulator-[0-9]*")):
            yield Leftover(path, "simulated machines")
        for path in sorted(folder.glob("pyvgpu-demo-[0-9]*")):
            yield Leftover(path, "the simulated machine of a killed demonstration")


def _generated(environment: Mapping[str, str], places: MachinePlaces) -> Iterator[Leftover]:
    for folder in places.specifications:
        for path in sorted(folder.glob("*.json")):
            if _kind(path) in _KINDS:
                yield Leftover(path, "a CDI specification of `pyvgpu cdi`")
    home = environment.get("HOME", "")
    if home.startswith("/"):
        for name in _COMPLETIONS:
            yield Leftover(Path(home) / name, "a completion script")


def _registries(places: MachinePlaces) -> Iterator[Leftover]:
    """Yield the registries; of a registry with entries of other users only the caller's own."""
    for registry in places.registries:
        entries: Iterable[Path] = ()
        with contextlib.suppress(OSError):
            entries = sorted(registry.iterdir())
        own = [path for path in entries if _is_ours(path)]
        if len(own) == len(tuple(entries)) and _is_ours(registry):
            yield Leftover(registry, "the reservations of this machine")
        else:
            for path in own:
                yield Leftover(path, "a reservation of this user")


def _kind(file: Path) -> object:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return document.get("kind") if isinstance(document, dict) else None


def _is_ours(path: Path) -> bool:
    """Whether *path* exists, is no link, and belongs to the caller; to anyone if that is root."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and os.geteuid() in (0, found.st_uid)
