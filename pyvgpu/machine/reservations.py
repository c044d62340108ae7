"""The machine's reservations: device time and memory of every `pyvgpu run`.

A registry is a folder with one folder per run, created and removed under one lock. Reserved
amounts are read from the quota files, which the shims enforce, so the sums always match the
enforced limits; ``reservation.json`` only identifies the holder. A run that holds more than its
quota, because the quota was lowered, reserves what it holds until it has freed enough. A
reservation counts while its supervisor or any of its processes is alive, which the kernel
determines (pyvgpu.region).

Users do not trust each other: a reservation is trusted only if its folder and files are owned by
one user and are not links, and no user except root removes another user's. Only root puts files
into a folder of root, so they may belong to the user whose processes write them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shlex
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, log, names, region, share
from pyvgpu.machine import admission, tenant_record, users
from pyvgpu.machine.holders import (
    ChangedReservation,
    Holder,
    LiveReservation,
    OwnReservation,
    derive_name,
    parse_holder,
    reserved_bytes,
    script,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyvgpu import quota
    from pyvgpu.machine import holders
    from pyvgpu.machine.holders import RunRequest

LOCK_SECONDS = 10.0
_LONGEST_SLEEP = 0.1  # seconds; a longer sleep means that this process was stopped

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST = 65536  # bytes of a reservation.json
LONGEST_COMMAND = 4096  # bytes of a command line
_turn = threading.Lock()  # of the threads of this process, for the locks of the registries
_FILES = (  # of a reservation, in the order of removal
    names.CONTROL_SOCKET,
    names.RESERVATION_FILE,
    names.TENANT_FILE,
    names.MOVES_FILE,
    names.COMMAND_FILE,
    names.TAMPERED_FILE,
    names.LIMIT_FILE,
    names.USAGE_FILE,
    names.QUOTA_FILE,
    *(f"{names.CLOCK_LINK}{index}" for index in range(region.DEVICES)),
    names.CLOCK_LINK,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Open:
    """A registry whose lock we hold."""

    path: Path
    descriptor: int


class Registries:
    """The registries of this machine: root's is used if root created it, else the shared one."""

    def __init__(
        self,
        root_registry: Path = names.ROOT_REGISTRY,
        shared_registry: Path = names.SHARED_REGISTRY,
    ) -> None:
        self._root_registry = root_registry
        self._shared_registry = shared_registry

    def reserve(
        self, request: RunRequest, holder: Holder, command: Sequence[str] = ()
    ) -> OwnReservation:
        """Reserve on the first device with room; UnavailableError lists the other holders.

        *command* is the command line, which only the run's user and root can read. A holder
        without a name gets one derived from it, else from the holder's command.
        """
        self._make()
        with self._locked() as registries:
            live = self._sweep(registries)
            chosen = admission.choose(request, live)
            called = script(command) if command else holder.command
            name = _unique_name(holder, called, live)
            holder = dataclasses.replace(holder, name=name, vcore=request.vcore)
            made = _enter(registries[0], chosen, request.driver_release, holder)
            if command:
                _write_command(registries[0], made, command)
            return made

    def reserve_oversubscribed(
        self,
        request: RunRequest,
        holder: Holder,
        command: Sequence[str],
        wanted: holders.OversubscribedRequest,
    ) -> OwnReservation:
        """Like :meth:`reserve`, but within the ratio; without room now, it begins suspended."""
        self._make()
        with self._locked() as registries:
            live = self._sweep(registries)
            chosen, has_room = admission.choose_oversubscribed(request, wanted.ratio, live)
            name = _unique_name(holder, script(command), live)
            holder = dataclasses.replace(holder, name=name, vcore=request.vcore)
            made = _enter(registries[0], chosen, request.driver_release, holder)
            try:
                now = tenant_record.now()
                record = tenant_record.TenantRecord(
                    wanted.rules,
                    now,
                    is_new=not has_room,
                    seen=now,  # its supervisor may be stopped before it decides once
                    host_memory=wanted.host_memory,
                )
                _write_record(made.folder, record)
                if not has_room:
                    region.mark(made.quota, region.Suspension(gated=True, suspended=True))
            except BaseException:
                os.close(made.quota)
                _remove(registries[0], made.run_id)
                raise
            _write_command(registries[0], made, command)
            return made

    @contextlib.contextmanager
    def frozen(self) -> Iterator[tuple[LiveReservation, ...]]:
        """Return every live reservation; none changes in this context."""
        with self._locked() as registries:
            yield tuple(self._sweep(registries))

    def renew(self, made: OwnReservation) -> None:
        """Have the run's shims note their next calls (region.renew)."""
        with self._locked():
            region.renew(made.quota)

    def change(self, made: OwnReservation, wanted: quota.QuotaChange) -> ChangedReservation:
        """Change a reservation, if there is room beside the others; effective at once.

        A lower amount needs no room. Held memory is read after the lower quota was written: a
        charge that the old quota admitted is then in the ledger, or checked again by the shim
        (csrc/core/ledger.h). So memory held above the quota only shrinks from then on.
        """
        changed = dataclasses.replace(made, share=share.change(made.share, wanted))
        with self._locked() as registries:
            live = {reservation.run_id: reservation for reservation in self._sweep(registries)}
            old = live.pop(made.run_id, None)
            registry = next(
                (registry for registry in registries if registry.path == made.folder.parent), None
            )
            if old is None or registry is None:
                raise errors.DataError(f"{made.folder}: the reservation no longer exists")
            vcore = old.holder.vcore if wanted.vcore is None else wanted.vcore
            others = tuple(live.values())
            if changed.share.vmemory > old.limits.devices[0].vmemory:
                admission.check_memory(changed.share, others)
            if vcore > old.holder.vcore:
                admission.check_time(changed.share, vcore, others)
            holder = dataclasses.replace(old.holder, vcore=vcore)
            # The registry never counts less than the shims allow.
            if vcore > old.holder.vcore:
                _rewrite_holder(registry, made.run_id, holder)
            region.update(made.quota, old.limits.driver_release, [changed.share])
            if vcore < old.holder.vcore:
                _rewrite_holder(registry, made.run_id, holder)
            held = None
            with contextlib.suppress(errors.PyVgpuError, OSError):  # the change stays in effect
                held = _read(registry, made.run_id).held
        return ChangedReservation(changed, vcore, held[0] if held else None)

    def mark(self, made: OwnReservation, suspension: region.Suspension) -> None:
        """Record whether the run of a reservation is suspended, and whether it still reserves."""
        with self._locked():
            region.mark(made.quota, suspension)

    def readmit(self, made: OwnReservation) -> None:
        """Reserve again what a suspended run gave up; UnavailableError lists the other holders."""
        with self._locked() as registries:
            live = {reservation.run_id: reservation for reservation in self._sweep(registries)}
            own = live.pop(made.run_id, None)
            if own is None:
                raise errors.DataError(f"{made.folder}: the reservation no longer exists")
            others = tuple(live.values())
            if own.limits.suspension.released:
                held = own.held[0] if own.held else None
                vmemory = reserved_bytes(own.limits.devices[0], held)
                wanted = dataclasses.replace(made.share, vmemory=vmemory)
                admission.check_memory(wanted, others, advise=False)
                admission.check_time(wanted, own.holder.vcore, others, advise=False)
            kept = region.Suspension(gated=True, suspended=True, kept=True)
            region.mark(made.quota, kept)

    def live(self) -> tuple[LiveReservation, ...]:
        """Return every live reservation, and remove dead ones that are ours."""
        with self._locked() as registries:
            return tuple(self._sweep(registries))

    @contextlib.contextmanager
    def steady(self) -> Iterator[tuple[LiveReservation, ...]]:
        """Hold the locks of all existing registries; yield the live reservations."""
        with self._locked() as registries:
            yield tuple(self._sweep(registries))

    @property
    def paths(self) -> tuple[Path, Path]:
        """The paths of the registries, whether they exist or not."""
        return self._root_registry, self._shared_registry

    @contextlib.contextmanager
    def held(self) -> Iterator[tuple[Path, ...]]:
        """Hold the locks of all existing registries: no run starts or ends meanwhile."""
        with self._locked() as registries:
            yield tuple(registry.path for registry in registries)

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Hold the locks of all existing registries while no run of the caller is active.

        UnavailableError names the active runs; for root those of all users.
        """
        with self._locked() as registries:
            active = [run for run in self._sweep(registries) if os.geteuid() in (0, run.uid)]
            if active:
                named = ", ".join(f"{run.name} (pid {run.holder.pid})" for run in active)
                raise errors.UnavailableError(
                    f"active runs: {named}; end them first, for example with `kill "
                    f"{active[0].holder.pid}`"
                )
            yield

    def forget(self, folder: Path) -> bool:
        """Remove the reservation in *folder* if it is dead; true if it is gone."""
        with self._locked() as registries:
            for registry in registries:
                if registry.path == folder.parent:
                    return _remove_if_dead(registry, folder.name)
        return True

    def _make(self) -> None:
        """Create the registry for new reservations: root's own for root, else the shared one."""
        path = self._shared_registry
        if os.geteuid() == 0:
            path = self._root_registry
        elif _exists(self._root_registry):
            return
        before = os.umask(0)
        try:
            path.mkdir(mode=0o1777)
        except FileExistsError:
            pass
        except OSError as exc:
            raise errors.of_files(
                f"{path}: the folder of reservations cannot be created", exc
            ) from exc
        finally:
            os.umask(before)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[list[_Open]]:
        """Hold the locks of all existing registries, always in the same order."""
        with _turn, contextlib.ExitStack() as stack:
            registries = []
            for path, owner in ((self._root_registry, 0), (self._shared_registry, None)):
                descriptor = _open_registry(path, owner)
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
                    _wait_for_lock(descriptor, path)
                    registries.append(_Open(path, descriptor))
            yield registries

    def _sweep(self, registries: Sequence[_Open]) -> list[LiveReservation]:
        live = []
        for registry in registries:
            with os.scandir(registry.descriptor) as entries:
                run_ids = sorted(entry.name for entry in entries if _RUN_ID.fullmatch(entry.name))
            for run_id in run_ids:
                if not _remove_if_dead(registry, run_id):
                    with contextlib.suppress(errors.PyVgpuError, OSError):
                        live.append(_read(registry, run_id))
        return live


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Let no thread of this process hold the lock of a registry in this context.

    A process that is stopped while it holds one would hold up all runs of the machine.
    """
    with _turn:
        yield


@contextlib.contextmanager
def opened(reservation: LiveReservation, name: str) -> Iterator[int]:
    """Open a file of *reservation*, which must be owned by its user; OSError, or DataError."""
    folder = os.open(reservation.folder, _FOLDER)
    try:
        with _opened(folder, name, reservation.uid, reservation.folder) as file:
            yield file
    finally:
        os.close(folder)


def _unique_name(holder: Holder, called: str, live: Sequence[LiveReservation]) -> str:
    """Return the holder's name if it is unused, or derive one from *called* if it has none.

    Each user has names of their own.
    """
    taken = {other.holder.name: other for other in live if other.uid == os.geteuid()}
    if holder.name in taken:
        other = taken[holder.name]
        raise errors.UsageError(
            f"--name {holder.name!r}: another run of user {users.name(other.uid)} has it (pid "
            f"{other.holder.pid}); must be another, such as {derive_name(holder.name)}"
        )
    name = holder.name or derive_name(called)
    while name in taken:
        name = derive_name(called)
    return name


def _enter(registry: _Open, chosen: share.Share, release: str, holder: Holder) -> OwnReservation:
    run_id = os.urandom(8).hex()
    before = os.umask(0o022)
    try:
        os.mkdir(run_id, mode=0o755, dir_fd=registry.descriptor)
        folder = os.open(run_id, _FOLDER, dir_fd=registry.descriptor)
        try:
            file = region.create(folder, release, [chosen])
            try:
                filled = dataclasses.replace(
                    holder,
                    command=log.printable(holder.command),
                    device_name=chosen.device.name,
                    pid=os.getpid(),
                    tree=str(Path(holder.tree) / run_id),
                    created=time.time(),
                )
                _write_holder(folder, filled)
            except BaseException:
                os.close(file)
                raise
        finally:
            os.close(folder)
    except OSError as exc:
        _remove(registry, run_id)
        raise errors.of_files(
            f"{registry.path / run_id}: the region cannot be created", exc
        ) from exc
    except BaseException:
        _remove(registry, run_id)
        raise
    finally:
        os.umask(before)
    return OwnReservation(run_id, registry.path / run_id, chosen, file)


def _write_holder(folder: int, holder: Holder) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(names.RESERVATION_FILE, flags, 0o644, dir_fd=folder), "w") as file:  # noqa: PTH123
        json.dump(dataclasses.asdict(holder), file)
        file.flush()


def write_record(folder: Path, record: tenant_record.TenantRecord) -> None:
    """Rewrite the record of an oversubscribed run in one write, in a Registries.frozen."""
    file = os.open(folder / names.TENANT_FILE, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(file, tenant_record.dump(record), 0)
    finally:
        os.close(file)


def _write_record(folder: Path, record: tenant_record.TenantRecord) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(folder / names.TENANT_FILE, flags, 0o644))
    (folder / names.TENANT_FILE).chmod(0o644)
    write_record(folder, record)


def _write_command(registry: _Open, made: OwnReservation, command: Sequence[str]) -> None:
    """Write the command line; a run for which there is no room for it goes on without."""
    text = log.printable(shlex.join(command)).encode("utf-8", "replace")[:LONGEST_COMMAND]
    with contextlib.suppress(OSError):
        folder = os.open(made.run_id, _FOLDER, dir_fd=registry.descriptor)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(names.COMMAND_FILE, flags, 0o600, dir_fd=folder)
            try:
                os.write(file, text)
            finally:
                os.close(file)
        finally:
            os.close(folder)


def _rewrite_holder(registry: _Open, run_id: str, holder: Holder) -> None:
    """Rewrite the holder in one write of one page, which no signal interrupts.

    A rename would wait for the disk; readers hold the lock of the reservations.
    """
    folder = os.open(run_id, _FOLDER, dir_fd=registry.descriptor)
    try:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(names.RESERVATION_FILE, flags, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        text = json.dumps(dataclasses.asdict(holder)).encode()
        os.pwrite(file, text.ljust(os.fstat(file).st_size), 0)
    finally:
        os.close(file)


def _read(registry: _Open, run_id: str) -> LiveReservation:
    """Read one reservation; DataError if it is not to be trusted."""
    path = registry.path / run_id
    folder = os.open(run_id, _FOLDER, dir_fd=registry.descriptor)
    try:
        uid = os.fstat(folder).st_uid
        _check_private(folder, uid, path)
        with (
            _opened(folder, names.QUOTA_FILE, uid, path) as quota_file,
            _opened(folder, names.USAGE_FILE, uid, path) as usage_file,
        ):
            limits = region.read_limits(quota_file)
            held = _read_held(quota_file, usage_file, len(limits.devices))
        with _opened(folder, names.RESERVATION_FILE, uid, path) as file:
            holder = parse_holder(os.read(file, _LONGEST), path / names.RESERVATION_FILE)
        record = _read_record(folder, uid, path)
        return LiveReservation(run_id, path, uid, holder, limits, held, record)
    finally:
        os.close(folder)


def _read_record(folder: int, uid: int, path: Path) -> tenant_record.TenantRecord | None:
    """Return the record of an oversubscribed run; None if there is none, or it is not valid."""
    try:
        with _opened(folder, names.TENANT_FILE, uid, path) as file:
            return tenant_record.load(os.read(file, tenant_record.BYTES))
    except (errors.DataError, OSError):
        return None


def _read_held(quota_file: int, usage_file: int, devices: int) -> tuple[int, ...] | None:
    """Return the bytes held by device; None if the ledger is damaged."""
    try:
        return region.read_held(quota_file, usage_file, devices)
    except (errors.DataError, OSError):
        return None


def _check_private(folder: int, uid: int, path: Path) -> None:
    if os.fstat(folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise errors.DataError(f"{path}: only user {users.name(uid)} must have write access")


@contextlib.contextmanager
def _opened(folder: int, name: str, uid: int, path: Path) -> Iterator[int]:
    file = os.open(name, _FILE, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or uid not in (0, found.st_uid):
            raise errors.DataError(
                f"{path / name}: must be a plain file of user {users.name(uid)}"
            )
        yield file
    finally:
        os.close(file)


def _remove_if_dead(registry: _Open, run_id: str) -> bool:
    """Remove the entry if it is dead and we may remove it; true if it does not count."""
    try:
        folder = os.open(run_id, _FOLDER, dir_fd=registry.descriptor)
    except OSError:
        return True  # gone, a link, or not readable by us: not a reservation
    try:
        uid = os.fstat(folder).st_uid
        if region.is_alive(folder):
            return False
    except OSError:
        uid = -1  # not a reservation's files: nothing to count, and we may not remove it
    finally:
        os.close(folder)
    if os.geteuid() in (0, uid):
        _remove(registry, run_id)
    return True


def _remove(registry: _Open, run_id: str) -> None:
    """Remove an entry: its files by name and its folders, without following links."""
    try:
        folder = os.open(run_id, _FOLDER, dir_fd=registry.descriptor)
    except OSError:
        return
    try:
        for name in _FILES:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
        shutil.rmtree(names.CONTAINER_FOLDER, ignore_errors=True, dir_fd=folder)
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):
        os.rmdir(run_id, dir_fd=registry.descriptor)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _open_registry(path: Path, owner: int | None) -> int | None:
    """Open a registry after checking its type and owner; None if it does not exist."""
    try:
        descriptor = os.open(path, _FOLDER)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise errors.DataError(
            f"{path}: must be a folder, not a link, that all users may read (mode 1777): "
            f"{exc.strerror}; remove it if it is not pyvgpu's"
        ) from exc
    found = os.fstat(descriptor)
    belongs = owner is None or found.st_uid == owner or _is_private_to(path.parent, found.st_uid)
    if not found.st_mode & stat.S_ISVTX or not belongs:
        os.close(descriptor)
        raise errors.DataError(
            f"{path}: must be a sticky folder (mode 1777)"
            + (f" of user {users.name(owner)}" if owner is not None else "")
            + f", but it has mode {stat.S_IMODE(found.st_mode):o} and belongs to user "
            f"{users.name(found.st_uid)}; "
            "remove it if it is not pyvgpu's"
        )
    return descriptor


def _is_private_to(parent: Path, uid: int) -> bool:
    """Whether *parent* also belongs to *uid*, and no other user can create or replace its files.

    In a user namespace without root, /run and root's registry both belong to the overflow user.
    """
    above = parent.stat()
    return above.st_uid == uid and not above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _wait_for_lock(descriptor: int, path: Path) -> None:
    """Wait LOCK_SECONDS at most, not counting the time for which this process was stopped."""
    waited = 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited >= LOCK_SECONDS:
                raise errors.UnavailableError(
                    f"{path}: other processes have held its lock for {LOCK_SECONDS:.0f} s; "
                    f"`fuser {path}` lists them"
                ) from None
            before = time.monotonic()
            time.sleep(0.002)
            waited += min(time.monotonic() - before, _LONGEST_SLEEP)
        else:
            return
