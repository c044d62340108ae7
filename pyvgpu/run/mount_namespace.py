"""Private mount namespace in which an overlay puts the shim into the driver's folder.

Programs that open the driver by its absolute path, or drop their environment, bypass
LD_LIBRARY_PATH. For them a read-only overlay is mounted on the driver's folder, visible to the run
alone. A bind mount of the shim is not enough: the shim looks for the driver in the folder that it
was opened from, which must also contain the driver under its private names.

:func:`enter` is for a single-threaded process that is about to exec.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.machine import mounts

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000

# Usual folders of links to a driver elsewhere; $ORIGIN is the folder that a program opened.
_LINK_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
)


class NamespaceError(errors.PermissionDeniedError):
    """The kernel denies a private mount namespace, or this overlay in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Overlay:
    """A folder, and the layer to mount over it."""

    folder: Path
    layer: Path


def link_folders(driver: Path, folders: Iterable[str] = _LINK_FOLDERS) -> tuple[Path, ...]:
    """Return the other folders with a link to a library in the folder *driver*."""
    found: list[Path] = []
    for folder in map(Path, folders):
        for name in names.SHIM_NAMES:
            leads = folder.is_dir() and (folder / name).resolve().parent == driver
            if leads and folder.resolve() != driver and folder.resolve() not in found:
                found.append(folder.resolve())
    return tuple(found)


def shimmed_names(folder: Path, files: Iterable[Path]) -> tuple[str, ...]:
    """Return the names in *folder* that must point to the shim: the driver's two libraries.

    They are the names of *files*, each of the four shim names that exists, and always the two
    names under which the shim looks for itself beside the opened path.
    """
    own = [file.name for file in files if file.parent == folder]
    there = [name for name in names.SHIM_NAMES if (folder / name).exists()]
    return tuple(dict.fromkeys([*own, names.LIBCUDA, names.LIBNVIDIA_ML, *there]))


def enter(overlays: Iterable[Overlay]) -> None:
    """Move this process into its own mount namespace and mount the overlays; NamespaceError.

    After an error the process must exit: it may have entered the namespace only partially.
    """
    uid, gid = os.geteuid(), os.getegid()
    if not (uid == 0 and _unshare(_CLONE_NEWNS)):
        if not _unshare(_CLONE_NEWNS | _CLONE_NEWUSER):
            raise NamespaceError(f"unshare: {os.strerror(ctypes.get_errno())}")
        _map_ourselves(uid, gid)
    _mount(None, "/", None, mounts.RECURSIVE | mounts.SLAVE, None)
    for overlay in overlays:
        _lay(overlay)


def _map_ourselves(uid: int, gid: int) -> None:
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as exc:
        raise NamespaceError(f"the user cannot be mapped: {exc.strerror}") from exc


def _lay(overlay: Overlay) -> None:
    """Mount the layer over the folder, both named by descriptor.

    A descriptor's path has no characters that are special in overlay options.
    """
    descriptors = []
    try:
        for folder in (overlay.layer, overlay.folder):
            descriptors.append(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        lower = ":".join(f"/proc/self/fd/{descriptor}" for descriptor in descriptors)
        _mount("overlay", str(overlay.folder), "overlay", mounts.READ_ONLY, f"lowerdir={lower}")
    except OSError as exc:
        raise NamespaceError(f"{exc.filename}: {exc.strerror}") from exc
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _unshare(flags: int) -> bool:
    return bool(mounts.libc().unshare(flags) == 0)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None
) -> None:
    try:
        mounts.mount(source, target, kind, flags, options)
    except OSError as exc:
        reason = "this kernel has no overlayfs" if exc.errno == errno.ENODEV else exc.strerror
        raise NamespaceError(f"{kind or 'mount'} on {target}: {reason}") from exc
