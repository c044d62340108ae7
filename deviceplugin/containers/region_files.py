"""The region files in a grant's folder, quota and usage: created, repaired, changed in place.

A container can do anything to its usage file; whatever is not a valid usage file is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from pyvgpu import errors, names, region, share
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyvgpu.deviceplugin.containers.cdi_edits import NodeDriver
    from pyvgpu.deviceplugin.grants import Grant

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_FILE = READ_FILE | os.O_RDWR


def prepare(path: Path) -> bytes:
    """Create the files that are the same for every grant; return the region's identity."""
    with folder_of(path) as folder:
        os.fchmod(folder, 0o755)  # its container reads it; the parent is the agent's only
        os.mkdir(cdi_edits.CLOCK_FOLDER, 0o755, dir_fd=folder)
        region_id = region.create_usage(folder, mode=0o666)  # a container may run as any uid
        region.prepare_quota(folder, names.QUOTA_FILE)
    return region_id


def begin(path: Path, region_id: bytes, grant: Grant, driver: NodeDriver) -> None:
    """Write a bound grant's quota into a prepared folder that no container has seen."""
    quota = path / names.QUOTA_FILE
    if grant.whole:
        quota.unlink()
        return
    shares = shares_of(grant, driver)
    file = os.open(quota, OPEN_FILE)
    try:
        region.begin_quota(file, region_id, driver.release, shares)
    finally:
        os.close(file)


def fill(path: Path) -> None:
    """Create the files that the folder lacks, each atomically."""
    path.chmod(0o755)  # its container reads it; the parent is the agent's only
    (path / cdi_edits.CLOCK_FOLDER).mkdir(mode=0o755, exist_ok=True)
    try:
        with opened(path) as file:
            region.read_usage_id(file)
    except FileNotFoundError:
        pass
    except (OSError, errors.DataError):
        atomic_files.discard(path / names.USAGE_FILE)
    else:
        return
    draft = atomic_files.new(path)
    with folder_of(path) as folder:
        region.create_usage(folder, draft.name, 0o666)  # a container may run as any uid
    draft.rename(path / names.USAGE_FILE)


def put_quota(path: Path, grant: Grant, driver: NodeDriver) -> None:
    """Write *grant*'s quota: in place if the existing one is of the same region and devices."""
    shares = shares_of(grant, driver)
    with opened(path) as file:
        region_id = region.read_usage_id(file)
    if change(path, region_id, driver.release, shares):
        return
    draft = atomic_files.new(path)
    with folder_of(path) as folder:
        region.create_quota(folder, draft.name, region_id, driver.release, shares)
    quota = path / names.QUOTA_FILE
    if quota.is_dir() and not quota.is_symlink():  # a rename replaces anything but a folder
        atomic_files.discard(quota)
    draft.replace(quota)


def change(path: Path, region_id: bytes, release: str | None, shares: list[share.Share]) -> bool:
    """Change the existing quota in place; false if there is none of this region and devices.

    *release*: of the driver; None keeps the quota's own.
    """
    try:
        with opened(path, names.QUOTA_FILE) as file:
            now = region.read_limits(file)
            same_devices = [each.uuid for each in now.devices] == [
                each.device.uuid for each in shares
            ]
            if region.read_quota_id(file) != region_id or not same_devices:
                return False
            release = release or now.driver_release
            if now != region.limits_of(now.generation, now.flags, release, shares):
                region.update(file, release, shares)
            return True
    except errors.DataError:
        return False
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.EISDIR, errno.ELOOP):
            return False
        raise


def shares_of(grant: Grant, driver: NodeDriver) -> list[share.Share]:
    """Return the shares of a grant; DataError if the driver lacks one of their devices."""
    try:
        return [grant.share_of(one, driver.devices[one.uuid]) for one in grant.shares]
    except KeyError as exc:
        raise errors.DataError(f"grant {grant.id}: no device {exc.args[0]} on this node") from exc


@contextlib.contextmanager
def folder_of(path: Path) -> Iterator[int]:
    """Open the folder of a grant."""
    descriptor = os.open(path, OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path, name: str = names.USAGE_FILE, flags: int = OPEN_FILE) -> Iterator[int]:
    """Open a file of the grant in the folder *path*; DataError if it is not a regular file."""
    with folder_of(path) as folder, opened_in(folder, path, name, flags) as file:
        yield file


@contextlib.contextmanager
def opened_in(
    folder: int, path: Path, name: str = names.USAGE_FILE, flags: int = OPEN_FILE
) -> Iterator[int]:
    """Do the same with the open *folder*, which is at *path*."""
    file = os.open(name, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise errors.DataError(f"{path / name}: must be a plain file")
        yield file
    finally:
        os.close(file)
