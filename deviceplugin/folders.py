"""Make grants real: a folder for each, and its CDI specification.

    <folder>/<id>/quota      what the container is held to
                 /usage      the ledger, which the container alone writes
                 /clock/     the clocks of its devices, kept by the arbiter's attendant
                 /driver     link to the tree of the mirror that its specification names
    <specifications>/pyvgpu.io-grant-<id>.json

The folder is a book as csrc/arbiter/book.h has it. What is made is made under another name and
renamed, so that whoever dies leaves the old or the new; making it again mends what is missing.
The specification comes last and goes first: with none, no container of the grant can start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names, region, share
from pyvgpu.deviceplugin import containers, grants
from pyvgpu.volumes import cdi, drafts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyvgpu.deviceplugin.containers import Driver
    from pyvgpu.deviceplugin.grants import Grant

USAGE_BYTES = region.USAGE_BYTES
DRIVER_LINK = "driver"

_PREFIX, _SUFFIX = "pyvgpu.io-grant-", ".json"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folders:
    """The grants that are there on this node."""

    def __init__(self, folder: Path, specifications: Path) -> None:
        self.folder = folder
        self._specifications = specifications
        self._changing = threading.Lock()
        self._made: dict[str, tuple[Grant, Driver, object]] = {}
        self._kept: dict[Path, int] = {}  # locks on the trees of the mirror that grants need
        with _failures(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o1700)
            specifications.mkdir(parents=True, exist_ok=True)
            for left in drafts.found(folder):
                drafts.discard(left)

    def close(self) -> None:
        """Keep no tree any more: the agent ends."""
        with self._changing:
            for descriptor in self._kept.values():
                os.close(descriptor)
            self._kept.clear()

    def path(self, grant_id: str) -> Path:
        """Return the folder of a grant, whether it is there or not."""
        if not grants.is_id(grant_id):
            raise errors.DataError(f"grant {grant_id!r}: its id must be 16 hexadecimal digits")
        return self.folder / grant_id

    def specification(self, grant_id: str) -> Path:
        """Return the file of a grant's CDI specification, whether it is there or not."""
        return self._specifications / f"{_PREFIX}{grant_id}{_SUFFIX}"

    def prepare(self, grant_id: str) -> Path:
        """Make the folder of a grant without a quota: what uses it so cannot use a device."""
        path = self.path(grant_id)
        with self._changing, _failures(path):
            self._ready(path)
        return path

    def make(self, grant: Grant, driver: Driver) -> None:
        """Make a bound grant real; to be called again before each start of its container.

        A quota that counts already is changed in place to what *grant* says.
        """
        path = self.path(grant.id)
        before = self._made.get(grant.id)
        if before is not None and before == (grant, driver, self._seen(grant)):
            return  # a start asks once for each resource
        document = containers.specification(grant, path, driver)
        with self._changing, _failures(path):
            self._ready(path)
            if not grant.whole:
                _put_quota(path, grant, driver)
            self._keep(path, driver.tree)
            cdi.write(document, self.specification(grant.id))
            self._made[grant.id] = (grant, driver, self._seen(grant))

    def mend(self, grant: Grant, driver: Driver) -> None:
        """Make what is lacking of a grant whose container may run: that has the driver it has.

        Its quota is changed to what *grant* says, and stays one for that driver.
        """
        if not self._is_of_another(grant, driver):
            self.make(grant, driver)

    def _is_of_another(self, grant: Grant, driver: Driver) -> bool:
        """Change the quota of a grant that is whole, and of another driver; else false."""
        path = self.path(grant.id)
        try:
            tree = (path / DRIVER_LINK).readlink()
        except OSError:
            return False
        there = tree.is_dir() and self.specification(grant.id).is_file()
        if tree == driver.tree or not there:
            return False
        with self._changing, _failures(path):
            self._hold(tree)
            self._made.pop(grant.id, None)
            if grant.whole:
                return True
            with _opened(path) as file:
                region_id = region.read_usage_id(file)
            return _changed_in_place(path, region_id, None, _shares(grant, driver))

    def revoke(self, grant_id: str) -> None:
        """Let nothing start on a grant again, and let its processes have nothing more."""
        path = self.path(grant_id)
        with self._changing, _failures(path):
            self._close(path)

    def _seen(self, grant: Grant) -> object:
        """Return what is another once anybody has touched what :meth:`make` made."""
        path = self.path(grant.id)
        files = [path, path / containers.CLOCK_FOLDER, self.specification(grant.id)]
        if not grant.whole:
            files.append(path / names.QUOTA_FILE)
        try:
            with _opened(path) as file:
                usage = os.fstat(file)
                seen: list[object] = [region.read_usage_id(file), usage.st_ino, usage.st_size]
            stats = [os.lstat(it) for it in files]
        except (OSError, errors.DataError):
            return None
        return [*seen, *((it.st_ino, it.st_size, it.st_mode, it.st_mtime_ns) for it in stats)]

    def remove(self, grant_id: str) -> None:
        """Let nothing be left of a grant, nor of what a process has of it that lives on."""
        path = self.path(grant_id)
        with self._changing, _failures(path):
            self._close(path)
            if path.exists():
                doomed = drafts.new(self.folder)
                path.rename(doomed)
                drafts.discard(doomed)
            self._let_go()

    def present(self) -> frozenset[str]:
        """Return the ids of the grants of which anything is there."""
        with _failures(self.folder):
            folders = {path.name for path in self.folder.iterdir()}
            files = {
                path.name[len(_PREFIX) : -len(_SUFFIX)]
                for path in self._specifications.glob(f"{_PREFIX}*{_SUFFIX}")
            }
        return frozenset(filter(grants.is_id, folders | files))

    def collect(self, live: Callable[[], set[str]]) -> frozenset[str]:
        """Remove what is of no grant that *live* tells; return what was removed.

        It is asked after the looking: what is remembered before it is made is never removed.
        """
        there = self.present()
        orphans = there - live()
        for grant_id in orphans:
            self.remove(grant_id)
        return orphans

    def cut(self, grant_id: str) -> bool:
        """Give a usage file that its container made longer its length; whether it was longer."""
        with contextlib.suppress(OSError), _opened(self.path(grant_id)) as file:
            if os.fstat(file).st_size > USAGE_BYTES:
                os.ftruncate(file, USAGE_BYTES)
                return True
        return False

    def limits(self, grant_id: str) -> tuple[region.DeviceLimits, ...]:
        """Return what the quota of a grant says; nothing if it has none that counts."""
        with (
            contextlib.suppress(OSError, errors.DataError),
            _opened(self.path(grant_id), names.QUOTA_FILE) as file,
        ):
            return region.read_limits(file).devices
        return ()

    def whole_nodes(self, grant_id: str) -> tuple[str, ...]:
        """Return the names of the device nodes of a grant of whole devices, if it is made."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            document = json.loads(self.specification(grant_id).read_bytes())
            edits = document["devices"][0]["containerEdits"]
            if all(it["containerPath"] != containers.QUOTA for it in edits["mounts"]):
                return tuple(str(it["path"]).removeprefix("/dev/") for it in edits["deviceNodes"])
        return ()

    @contextlib.contextmanager
    def opened(self, grant_id: str, name: str) -> Iterator[int]:
        """Open a file of a grant to be read; DataError if it is no plain file."""
        with _opened(self.path(grant_id), name, _OPEN_FILE & ~os.O_RDWR) as file:
            yield file

    def is_used(self, grant_id: str) -> bool:
        """Return whether a process of the grant's container holds a part of a device."""
        with contextlib.suppress(OSError), _opened(self.path(grant_id)) as file:
            return region.is_used(file)
        return False

    def _close(self, path: Path) -> None:
        self._made.pop(path.name, None)
        self.specification(path.name).unlink(missing_ok=True)
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError, errors.DataError),
            _opened(path, names.QUOTA_FILE) as file,
        ):
            region.close(file)

    def _ready(self, path: Path) -> None:
        """See that the folder is there with all but a quota in it."""
        if not path.is_dir():
            draft = drafts.new(self.folder)
            draft.mkdir(mode=0o755)
            _fill(draft)
            draft.rename(path)
            return
        for left in drafts.found(path):
            drafts.discard(left)
        _fill(path)

    def _keep(self, path: Path, tree: Path) -> None:
        """Say in the grant's folder which tree it needs, and keep that."""
        link = path / DRIVER_LINK
        self._hold(tree)
        with contextlib.suppress(OSError):
            if link.readlink() == tree:
                return
        draft = drafts.new(path)
        draft.symlink_to(tree)
        draft.replace(link)
        if len(self._kept) > 1:
            self._let_go()

    def _hold(self, tree: Path) -> None:
        if tree not in self._kept:
            descriptor = os.open(tree, _OPEN_FOLDER)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._kept[tree] = descriptor

    def _let_go(self) -> None:
        """Let go of the trees that no grant names any more."""
        needed = set()
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                needed.add((path / DRIVER_LINK).readlink())
        for tree in self._kept.keys() - needed:
            os.close(self._kept.pop(tree))


def _fill(path: Path) -> None:
    """Put into the folder what is missing of it, whole."""
    path.chmod(0o755)  # who is held to it reads it; the folder above is nobody's but ours
    (path / containers.CLOCK_FOLDER).mkdir(mode=0o755, exist_ok=True)
    try:
        with _opened(path) as file:
            region.read_usage_id(file)
    except FileNotFoundError:
        pass
    except (OSError, errors.DataError):
        drafts.discard(path / names.USAGE_FILE)
    else:
        return
    draft = drafts.new(path)
    with _folder(path) as folder:
        region.create_usage(folder, draft.name, 0o666)  # users of a container have any number
    draft.rename(path / names.USAGE_FILE)


def _put_quota(path: Path, grant: Grant, driver: Driver) -> None:
    """Let the quota say what *grant* says: in place where one counts that fits."""
    shares = _shares(grant, driver)
    with _opened(path) as file:
        region_id = region.read_usage_id(file)
    if _changed_in_place(path, region_id, driver.release, shares):
        return
    draft = drafts.new(path)
    with _folder(path) as folder:
        region.create_quota(folder, draft.name, region_id, driver.release, shares)
    quota = path / names.QUOTA_FILE
    if quota.is_dir() and not quota.is_symlink():  # the one thing that a rename does not replace
        drafts.discard(quota)
    draft.replace(quota)


def _changed_in_place(
    path: Path, region_id: bytes, release: str | None, shares: list[share.Share]
) -> bool:
    """Change the quota that is there; false if there is none of this region and devices.

    *release*: of the driver; None is the one that it is for.
    """
    try:
        with _opened(path, names.QUOTA_FILE) as file:
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


def _shares(grant: Grant, driver: Driver) -> list[share.Share]:
    try:
        return [
            share.Share(
                driver.devices[one.uuid], one.vcore, one.vmemory, grant.policy, grant.ceiling
            )
            for one in grant.shares
        ]
    except KeyError as exc:
        raise errors.DataError(f"grant {grant.id}: device {exc.args[0]} is not there") from exc


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only agent whose grants are below *folder*; UnavailableError if there is another."""
    with _failures(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, _OPEN_FOLDER)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise errors.UnavailableError(
                f"{folder}: another agent has its grants there; one is enough, or name another "
                "folder by --run"
            ) from exc
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path, name: str = names.USAGE_FILE, flags: int = _OPEN_FILE) -> Iterator[int]:
    """Open a file of a grant, which must be a plain one."""
    with _folder(path) as folder:
        file = os.open(name, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise errors.DataError(f"{path / name}: must be a plain file")
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Turn what the file system refuses inside into an error that says what would do."""
    try:
        yield
    except OSError as exc:
        where = exc.filename or path
        raise errors.of_files(f"{where}: the grant cannot be made real", exc) from exc
