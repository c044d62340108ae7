"""The user's cache folder, and the file tree of each run in it.

    <cache>/runs/<run id>/lib64     the folder in LD_LIBRARY_PATH: the shim under its four names
                         /origin    links to the driver's own files, under the shim's names
                         /region    link to the run's folder in the store of reservations
                         /layer     the overlay that namespace.py mounts over the driver's folder

The tree has the name of the reservation, which is created first: a tree without a live
reservation is dead, whichever process left it. A home may be shared between machines, whose
reservations are separate: so the supervisor also keeps a lock on the tree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, locks, names
from pyvgpu.machine import users

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.machine import reservations

RUNS = "runs"


@dataclasses.dataclass(frozen=True, slots=True)
class RunSource:
    """The sources of a run's tree: the mirror of a driver, and its simulated machine."""

    lib64: Path  # of the mirror: the shim and the driver's other libraries
    origin: Path  # of the mirror: the driver's own
    machine: Path | None = None


def find_cache(environment: Mapping[str, str]) -> Path:
    """Return the first folder in which we may keep executable files."""
    uid = os.geteuid()
    reasons = []
    for candidate in caches(environment):
        reason = _complain(candidate, uid)
        if reason is None:
            return candidate
        reasons.append(f"{candidate} ({reason})")
    raise errors.UnavailableError(
        f"no folder for the driver's mirror: {', '.join(reasons)}; set XDG_CACHE_HOME to one "
        "with free space that is yours and not mounted noexec"
    )


def caches(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the user's cache folders in order of preference, whether they exist or not."""
    candidates = []
    if environment.get("XDG_CACHE_HOME", "").startswith("/"):
        candidates.append(Path(environment["XDG_CACHE_HOME"]) / "pyvgpu")
    if environment.get("HOME", "").startswith("/"):
        candidates.append(Path(environment["HOME"]) / ".cache" / "pyvgpu")
    candidates.append(Path(f"/var/tmp/pyvgpu-{os.geteuid()}"))  # noqa: S108 - the owner is checked
    return tuple(candidates)


def check_cache(folder: Path, mode: int) -> Path:
    """Return *folder*, created with *mode*, if we may keep executable files there."""
    reason = _complain(folder, os.geteuid(), mode)
    if reason is not None:
        raise errors.UnavailableError(
            f"no folder for the driver's mirror: {folder} ({reason}); must be a folder of user "
            f"{users.name(os.geteuid())} with free space and not mounted noexec"
        )
    return folder


def make(cache: Path, run_id: str, source: RunSource, region: Path) -> tuple[Path, int]:
    """Create the tree of run *run_id*; return its folder and the descriptor that locks it."""
    tree = cache / RUNS / run_id
    lock = -1
    try:
        tree.mkdir(parents=True)
        lock = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH)
        for folder in (tree / "lib64", tree / "origin"):
            folder.mkdir()
        for entry in sorted(source.lib64.iterdir()):
            if entry.name not in names.SHIM_NAMES:
                (tree / "lib64" / entry.name).symlink_to(entry)
        shim = tree / "lib64" / names.LIBCUDA
        shim.hardlink_to(source.lib64 / names.LIBCUDA)
        for name in names.SHIM_NAMES:
            if name != names.LIBCUDA:
                (tree / "lib64" / name).hardlink_to(shim)
        for entry in sorted(source.origin.iterdir()):
            (tree / "origin" / entry.name).symlink_to(entry)
        if source.machine is not None:
            (tree / "origin" / names.SIMULATED_MACHINE).symlink_to(source.machine)
        (tree / "region").symlink_to(region)
    except OSError as exc:
        if lock >= 0:
            os.close(lock)
        remove(tree)
        raise errors.of_files(f"{tree}: the run's libraries cannot be created", exc) from exc
    return tree, lock


def make_layer(tree: Path, name: str, source: RunSource, shimmed: Iterable[str]) -> Path:
    """Create a layer: names in *shimmed* point to the shim, private names to the driver."""
    layer = tree / name
    links = dict.fromkeys(shimmed, tree / "lib64" / names.LIBCUDA)
    links |= {link: source.origin / link for link in _ORIGINS}
    if source.machine is not None:
        links[names.SIMULATED_MACHINE] = source.machine
    try:
        layer.mkdir()
        for link, target in links.items():
            (layer / link).symlink_to(target)
    except OSError as exc:
        raise errors.of_files(f"{layer}: cannot be filled", exc) from exc
    return layer


def sweep(cache: Path, registries: reservations.Registries) -> None:
    """Remove the trees of runs that are dead, here and on other machines."""
    with contextlib.suppress(FileNotFoundError):
        # List the trees before the reservations: a run that starts in between is not in the list.
        trees = list((cache / RUNS).iterdir())
        live = {reservation.run_id for reservation in registries.live()}
        for tree in trees:
            if tree.name not in live and not locks.is_flocked(tree):
                remove(tree)


def remove(tree: Path) -> None:
    """Remove one tree; links are not followed."""
    shutil.rmtree(tree, ignore_errors=True)


_ORIGINS = (names.LIBCUDA_ORIGIN, names.LIBNVIDIA_ML_ORIGIN)


def _complain(folder: Path, uid: int, mode: int = 0o700) -> str | None:
    """Create *folder* and return why it cannot be used, None if it can."""
    # ld.so splits LD_LIBRARY_PATH at : and ;, and expands $. It skips folders that it does not
    # find, and the program would load the bare driver.
    if any(sign in str(folder) for sign in ":;$"):
        return "has one of : ; $ in its name"
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return "is not a folder"
        if found.st_uid != uid:
            return f"belongs to user {users.name(found.st_uid)}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "others may write to it"
        if not os.access(folder, os.W_OK | os.X_OK):
            return "may not be written to"
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return "is mounted noexec"
    except OSError as exc:
        return (exc.strerror or "cannot be made").lower()
    return None
