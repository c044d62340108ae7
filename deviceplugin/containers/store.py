"""Grant store on disk: a folder for each grant, and its CDI specification.

    <folder>/<id>/quota      the container's quota
                 /usage      the ledger, which only the container writes
                 /clock/     the clocks of its devices, linked by :mod:`.arbiter_clocks`
                 /driver     link to the tree of the mirror that its specification names
    <specifications>/pyvgpu.io-grant-<id>.json

The folder is a registry as defined in csrc/arbiter/registry.h. Everything is created under a
draft name and renamed, so that a crash leaves the old or the new state; making it again adds
missing files. The specification is created last and removed first: without it, no container of
the grant starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names, region
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import cdi_edits, grant_pool, mirror_leases, region_files
from pyvgpu.volumes import atomic_files, cdi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyvgpu.deviceplugin.containers.cdi_edits import NodeDriver
    from pyvgpu.deviceplugin.grants import Grant

GRANTS = "grants"  # the folder of all grants, in the run folder
USAGE_BYTES = region.USAGE_BYTES

_PREFIX, _SUFFIX = "pyvgpu.io-grant-", ".json"


class GrantStore:
    """The files of all grants on this node."""

    def __init__(self, folder: Path, specifications: Path) -> None:
        self.folder = folder
        self._specifications = specifications
        self._lock = threading.Lock()
        self._pool = grant_pool.GrantPool(folder)
        self._trees = mirror_leases.Trees(folder)
        with _failures(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o1700)
            specifications.mkdir(parents=True, exist_ok=True)
            for left in (*atomic_files.found(folder), *atomic_files.forsaken(specifications)):
                atomic_files.discard(left)

    def close(self) -> None:
        """Release all trees and remove the pool: the agent ends."""
        self._pool.close()
        with self._lock:
            self._trees.close()

    def path(self, grant_id: str) -> Path:
        """Return the folder of a grant, whether it exists or not."""
        if not grants.is_id(grant_id):
            raise errors.DataError(f"grant {grant_id!r}: its id must be 16 hexadecimal digits")
        return self.folder / grant_id

    def specification(self, grant_id: str) -> Path:
        """Return the file of a grant's CDI specification, whether it exists or not."""
        return self._specifications / f"{_PREFIX}{grant_id}{_SUFFIX}"

    def prepare(self, grant_id: str) -> Path:
        """Create the folder of a grant without a quota: with it, a process can use no device."""
        path = self.path(grant_id)
        with self._lock, _failures(path):
            self._ready(path)
        return path

    def fill(self, driver: NodeDriver) -> None:
        """Prepare templates and folders for future grants; to be called when idle."""
        cdi_edits.ready(self.folder, driver)
        with _failures(self.folder):
            self._pool.fill(driver.tree)

    def make(self, grant: Grant, driver: NodeDriver) -> None:
        """Write a bound grant's files; to be called again before each start of its container.

        An existing quota is changed in place to *grant*'s.
        """
        path = self.path(grant.id)
        content = cdi_edits.written(grant, path, driver)
        with self._lock, _failures(path):
            if path.is_dir():
                self._ready(path)
                if not grant.whole:
                    region_files.put_quota(path, grant, driver)
                self._trees.note(path, driver.tree)
            else:
                self._begin(path, grant, driver)
            # Not synced: no container outlives the node, and it is written again before a start.
            cdi.put(content, self.specification(grant.id), lasting=False)

    def repair(self, grant: Grant, driver: NodeDriver) -> None:
        """Write missing files of a grant whose container may run, and keep its driver.

        Its quota is changed to *grant*'s, and stays one for that driver.
        """
        if not self._is_of_another(grant, driver):
            self.make(grant, driver)

    def _is_of_another(self, grant: Grant, driver: NodeDriver) -> bool:
        """Update the quota of a complete grant for another driver; false if it is not one."""
        path = self.path(grant.id)
        try:
            tree = (path / mirror_leases.DRIVER_LINK).readlink()
        except OSError:
            return False
        there = tree.is_dir() and self.specification(grant.id).is_file()
        if tree == driver.tree or not there:
            return False
        with self._lock, _failures(path):
            self._trees.hold(path, tree)
            if grant.whole:
                return True
            with region_files.opened(path) as file:
                region_id = region.read_usage_id(file)
            return region_files.change(
                path, region_id, None, region_files.shares_of(grant, driver)
            )

    def revoke(self, grant_id: str) -> None:
        """Start no container on a grant again, and let its processes allocate no more."""
        path = self.path(grant_id)
        with self._lock, _failures(path):
            self._close(path)

    def remove(self, grant_id: str) -> None:
        """Remove a grant's files, and close its quota for processes that still run."""
        path = self.path(grant_id)
        with self._lock, _failures(path):
            self._close(path)
            if path.exists():
                doomed = atomic_files.new(self.folder)
                path.rename(doomed)
                atomic_files.discard(doomed)
            self._trees.forget(grant_id)

    def present(self) -> frozenset[str]:
        """Return the ids of the grants of which any file exists."""
        with _failures(self.folder):
            folders = os.listdir(self.folder)  # noqa: PTH208 - iterdir() is slow: this runs often
            files = os.listdir(self._specifications)  # noqa: PTH208
        written = (
            name[len(_PREFIX) : -len(_SUFFIX)]
            for name in files
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )
        return frozenset(filter(grants.is_id, (*folders, *written)))

    def collect(self, live: Callable[[], set[str]]) -> frozenset[str]:
        """Remove the files of grants that are not in *live*; return their ids.

        *live* is called after the listing: a grant that is stored before its files are created is
        never removed.
        """
        there = self.present()
        orphans = there - live()
        for grant_id in orphans:
            self.remove(grant_id)
        return orphans

    def cut(self, grant_id: str) -> bool:
        """Truncate a usage file that its container has extended; whether it was too long."""
        with contextlib.suppress(OSError), region_files.opened(self.path(grant_id)) as file:
            if os.fstat(file).st_size > USAGE_BYTES:
                os.ftruncate(file, USAGE_BYTES)
                return True
        return False

    def limits(self, grant_id: str) -> tuple[region.DeviceLimits, ...]:
        """Return the limits in the quota of a grant; nothing if it has no valid one."""
        with (
            contextlib.suppress(OSError, errors.DataError),
            region_files.opened(self.path(grant_id), names.QUOTA_FILE) as file,
        ):
            return region.read_limits(file).devices
        return ()

    def suspension(self, grant_id: str) -> region.Suspension:
        """Return what the quota of a grant says about its suspension; none if it has no quota."""
        with (
            contextlib.suppress(OSError, errors.DataError),
            region_files.opened(self.path(grant_id), names.QUOTA_FILE) as file,
        ):
            return region.read_suspension(file)
        return region.Suspension()

    def mark(self, grant_id: str, suspension: region.Suspension) -> None:
        """Write into the quota of a grant whether its processes are suspended."""
        path = self.path(grant_id)
        with (
            self._lock,
            _failures(path),
            region_files.opened(path, names.QUOTA_FILE) as file,
        ):
            region.mark(file, suspension)

    def renew(self, grant_id: str) -> None:
        """Let the shims of a grant note their next calls; see region.renew."""
        path = self.path(grant_id)
        with (
            self._lock,
            _failures(path),
            region_files.opened(path, names.QUOTA_FILE) as file,
        ):
            region.renew(file)

    def claimed(self) -> list[Grant]:
        """Return the grants of claims from their specifications, as last written."""
        found = []
        for file in self._specifications.glob(f"{_PREFIX}*{_SUFFIX}"):
            with contextlib.suppress(
                OSError, ValueError, LookupError, TypeError, errors.DataError
            ):
                (only,) = json.loads(file.read_bytes())["devices"]
                found.append(grants.load(json.loads(only["annotations"][names.GRANT_KIND])))
        # The files of a MIG instance are those of a device, but the grant is one of its GPU.
        return [
            dataclasses.replace(grant, shares=grant.claim.shares)
            if grant.claim and any(share.mig for share in grant.claim.shares)
            else grant
            for grant in found
        ]

    def whole_nodes(self, grant_id: str) -> tuple[str, ...]:
        """Return the device nodes' names of a grant of whole devices, from its specification."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            document = json.loads(self.specification(grant_id).read_bytes())
            edits = document["devices"][0]["containerEdits"]
            if all(mount["containerPath"] != cdi_edits.QUOTA for mount in edits["mounts"]):
                return tuple(
                    str(node["path"]).removeprefix("/dev/") for node in edits["deviceNodes"]
                )
        return ()

    @contextlib.contextmanager
    def opened(self, grant_id: str, name: str) -> Iterator[int]:
        """Open a file of a grant for reading; DataError if it is not a regular file."""
        with region_files.opened(self.path(grant_id), name, region_files.READ_FILE) as file:
            yield file

    @contextlib.contextmanager
    def opened_both(self, grant_id: str) -> Iterator[tuple[int, int]]:
        """Open the usage and the quota file of a grant, like :meth:`opened`."""
        path, flags = self.path(grant_id), region_files.READ_FILE
        with (
            region_files.folder_of(path) as folder,
            region_files.opened_in(folder, path, names.USAGE_FILE, flags) as usage,
            region_files.opened_in(folder, path, names.QUOTA_FILE, flags) as quota,
        ):
            yield usage, quota

    def is_used(self, grant_id: str) -> bool:
        """Return whether a process of the grant's container uses a device."""
        with contextlib.suppress(OSError), region_files.opened(self.path(grant_id)) as file:
            return region.is_used(file)
        return False

    def _close(self, path: Path) -> None:
        self.specification(path.name).unlink(missing_ok=True)
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError, errors.DataError),
            region_files.opened(path, names.QUOTA_FILE) as file,
        ):
            region.close(file)

    def _begin(self, path: Path, grant: Grant, driver: NodeDriver) -> None:
        """Create the folder with all its content, atomically."""
        self._trees.hold(path, driver.tree)
        blank = self._pool.take(driver.tree)
        try:
            region_files.begin(blank.path, blank.region_id, grant, driver)
            blank.path.rename(path)
        except BaseException:
            atomic_files.discard(blank.path)
            raise

    def _ready(self, path: Path) -> None:
        """Ensure that the folder exists with all content but the quota."""
        if not path.is_dir():
            draft = atomic_files.new(self.folder)
            atomic_files.make(draft)
            region_files.fill(draft)
            draft.rename(path)
            return
        for left in atomic_files.found(path):
            atomic_files.discard(left)
        region_files.fill(path)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold *folder*'s lock for this agent; UnavailableError if another agent has it."""
    with _failures(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, region_files.OPEN_FOLDER)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise errors.UnavailableError(
                f"{folder}: another agent uses this folder; stop one of them, or choose "
                f"another folder with --run"
            ) from exc
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Turn an OSError inside into a PyVgpuError that names the file and the remedy."""
    try:
        yield
    except OSError as exc:
        where = exc.filename or path
        raise errors.of_files(f"{where}: the files of the grant cannot be changed", exc) from exc
