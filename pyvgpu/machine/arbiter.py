"""Find, start and supervise the machine's arbiter, which keeps the clocks of runs.

The arbiter is a separate program (csrc/arbiter), one for all runs of all users, in a folder below
a reservation folder. Each supervisor watches it: if none is alive, or it is frozen, the supervisor
starts one, and it maintains the links through which its run's shims find their clocks. Without an
arbiter a run has its hard share, so no failure here makes a run fail.

An arbiter can be killed at any time, and a supervisor can be stopped between any two steps. So a
successful start proves nothing: only the next check does. A supervisor reports an arbiter that
cannot be started, with the reason, or one that is missing in many consecutive checks.

Users do not trust each other: an arbiter is trusted if its folder and file are owned by one user
and are not links; the shim validates the contents of its clocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import stat
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, locks, log, names, quantity, quota, region, shim
from pyvgpu._region import ffi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyvgpu.machine import reservations

PERIOD_SECONDS = 0.2  # between two checks of the arbiter
FROZEN_SECONDS = 1.0  # without a heartbeat
TIMEOUT_SECONDS = 5.0  # timeout for an arbiter to start or to end
STARTS = 10  # consecutive starts without a live arbiter, before the run's user gets a warning
MUTE_POLLS = 10  # checks for which we wait for a clock from another user's arbiter

_FOLDER = re.compile(re.escape(names.ARBITER_FOLDER) + r"(0|[1-9][0-9]{0,9})")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAGIC = ffi.integer_const("CLOCK_MAGIC")
_BEAT = ffi.offsetof("struct clock_file", "beat_ns")
_FROZEN_NS = round(FROZEN_SECONDS * 1e9)
_AHEAD_NS = 1_000_000  # by which a heartbeat may be ahead of our clock


@dataclasses.dataclass(frozen=True, slots=True)
class Nvml:
    """The NVML from which an arbiter learns which processes use a device without a quota."""

    library: Path
    machine: Path | None = None  # of a simulated driver

    @property
    def options(self) -> tuple[str, ...]:
        """The arbiter's command-line options for this library."""
        return ("--nvml", str(self.library))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the library needs in the arbiter's environment."""
        if self.machine is None:
            return {}
        return {names.SIMULATED_MACHINE_VARIABLE: str(self.machine)}


@dataclasses.dataclass(frozen=True, slots=True)
class Arbiter:
    """A running arbiter."""

    folder: Path
    uid: int
    pid: int  # 0: in another pid namespace
    beats: bool  # false: it is frozen

    def clock(self, run_id: str, index: int) -> Path:
        """Return the path of the clock for device *index* of a run's quota."""
        return _clock(self.folder, run_id, index)


def find(registries: Iterable[Path]) -> tuple[Arbiter, ...]:
    """Return all running arbiters, the preferred first: root's, then our own user's."""
    found = []
    for registry in registries:
        with contextlib.suppress(OSError):
            names_there = sorted(os.listdir(registry))  # noqa: PTH208 - names, not paths
            found += [one for name in names_there if (one := examine(registry / name)) is not None]
    mine = os.geteuid()
    return tuple(sorted(found, key=lambda one: (one.uid != 0, one.uid != mine, one.uid)))


def examine(folder: Path) -> Arbiter | None:
    """Return the arbiter running in *folder*, if any."""
    named = _FOLDER.fullmatch(folder.name)
    if named is None:
        return None
    uid = int(named[1])
    with contextlib.suppress(OSError), _opened(folder, uid) as file:
        pid = locks.holder(file)
        if pid is not None and pid >= 0:
            return Arbiter(folder, uid, pid, _is_fresh(file))
    return None


def serves(clock: Path) -> bool:
    """Return whether the clock at *clock*, which may be a link, has a recent heartbeat."""
    try:
        file = os.open(clock, _OPEN_FILE & ~os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(file).st_mode) and _is_fresh(file)
    finally:
        os.close(file)


def start(folder: Path, registries: tuple[Path, Path], nvml: Nvml | None = None) -> None:
    """Start an arbiter in *folder* after killing one that is frozen there.

    Without *nvml* it assumes that only the runs of the registries use a device.

    Returns once an arbiter owns the folder; it may be another one, and it may have died since. If
    that takes longer than TIMEOUT_SECONDS, returns anyway: the machine is busy, or the caller
    was stopped. Raises UnavailableError, with the reason, if the program cannot be executed or
    cannot use the folder.
    """
    kill_frozen(folder)
    program = shim.arbiter_program()
    try:
        started = subprocess.run(
            [program, *(() if nvml is None else nvml.options), folder, *registries],
            env={} if nvml is None else nvml.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return
    except OSError as exc:
        raise errors.UnavailableError(f"{program} cannot be executed: {exc.strerror}") from exc
    # The supervisor's wait for all children may have taken the exit code.
    if started.stderr:
        said = started.stderr.decode("utf-8", "replace").strip()
        raise errors.UnavailableError(f"no arbiter can be started in {folder}: {said}")


class Attendant:
    """Supervises the arbiter for one run, in its own thread, until it is stopped."""

    def __init__(
        self,
        registries: reservations.Registries,
        folder: Path,
        quota_file: int,
        nvml: Nvml | None = None,
        after_poll: Callable[[], None] = lambda: None,
    ) -> None:
        """*after_poll* is called after each check; an OSError of it is reported."""
        self._registries = registries
        self._after_poll = after_poll
        self._nvml = nvml
        self._folder = folder
        self._quota = quota_file  # descriptor of the quota file, the supervisor's
        self._refused: set[Path] = set()
        self._limits: region.QuotaLimits | None = None
        self._mute = 0
        self._starts = 0  # since the last heartbeat of the linked arbiter
        self._doubted = False
        self._complained = False
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="attendant", daemon=True)

    def poll(self) -> None:
        """Ensure that the run's clocks are kept, if it needs any."""
        with self._lock:
            if self._stopped.is_set():  # the descriptor may have been closed and reused
                return
            try:
                self._poll()
                self._after_poll()
            except (OSError, errors.PyVgpuError) as exc:
                self._complain(str(exc))

    def start(self) -> None:
        """Start the periodic checks; call this only after the last fork of this process."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the checks. Harmless if they were never started."""
        with self._lock:
            self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_SECONDS):
            self.poll()

    def _complain(self, reason: str) -> None:
        """Report once why the run has no clock yet, and what that means."""
        if not self._complained:
            log.say(
                f"{reason}; until an arbiter accounts this run's time, the run may get less than "
                "its vcore beside other runs, and never more"
            )
        self._complained = True

    def _poll(self) -> None:
        linked = self._linked()
        if linked is not None and (self._beats(linked) and not self._is_mute(linked)):
            return
        limits = self._limits
        if limits is None or region.read_generation(self._quota) != limits.generation:
            limits = self._limits = region.read_limits(self._quota)
        count = len(limits.devices)
        if limits.priority is quota.Priority.LOW or any(map(_limits_time, limits.devices)):
            with self._registries.held() as registries:
                self._link(self._choose(registries), count)
        else:  # a whole device needs no arbiter, but joins one that other runs have started
            for one in find(self._registries.paths)[:1]:
                self._link(one.folder, count)

    def _linked(self) -> Arbiter | None:
        try:
            return examine(self._link_path(0).readlink().parent)
        except OSError:
            return None

    def _beats(self, linked: Arbiter) -> bool:
        """Whether it beats, or did at our last check: the machine may have been suspended."""
        beats = linked.beats or not self._doubted
        self._doubted = not linked.beats
        if linked.beats:
            self._starts = 0
        return beats

    def _is_mute(self, linked: Arbiter) -> bool:
        """Whether it is another user's, and has given us no clock in MUTE_POLLS checks."""
        if linked.uid == os.geteuid() or serves(self._link_path(0)):
            self._mute = 0
        else:
            self._mute += 1
        if self._mute < MUTE_POLLS:
            return False
        self._mute = 0
        self._refused.add(linked.folder)
        return True

    def _choose(self, registries: tuple[Path, ...]) -> Path:
        """Return the folder of a live arbiter, or start one; the caller holds the locks."""
        for one in find(registries):
            if one.beats and one.folder not in self._refused:
                self._starts = 0
                return one.folder
        folder = registries[0] / f"{names.ARBITER_FOLDER}{os.geteuid()}"
        if self._starts == STARTS:
            self._complain(
                f"{folder}: {STARTS} consecutive starts left no live arbiter "
                "(`pyvgpu doctor` shows what is there)"
            )
        self._starts += 1
        start(folder, self._registries.paths, self._nvml)
        return folder

    def _link(self, folder: Path, count: int) -> None:
        """Link the run's *count* clocks to *folder*; a shim finds either the old or the new."""
        new = self._folder / names.CLOCK_LINK
        for index in range(count):
            clock, link = _clock(folder, self._folder.name, index), self._link_path(index)
            with contextlib.suppress(OSError):
                if link.readlink() == clock:
                    continue
            new.unlink(missing_ok=True)
            new.symlink_to(clock)
            new.replace(link)

    def _link_path(self, index: int) -> Path:
        return self._folder / f"{names.CLOCK_LINK}{index}"


@contextlib.contextmanager
def _opened(folder: Path, uid: int) -> Iterator[int]:
    """Open an arbiter's file after checking that only *uid* owns and can write its folder."""
    descriptor = os.open(folder, _OPEN_FOLDER)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{folder}: must be a folder of user {uid} alone")
        file = os.open(names.ARBITER_FILE, _OPEN_FILE, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            raise PermissionError(f"{folder}: must have a plain file of user {uid}")
        yield file
    finally:
        os.close(file)


def _limits_time(share: region.DeviceLimits) -> bool:
    return share.vcore < quantity.WHOLE_DEVICE and share.isolation is not quota.Isolation.MPS


def _clock(folder: Path, run_id: str, index: int) -> Path:
    return folder / f"{run_id}.{index}"


def _is_fresh(file: int) -> bool:
    """Whether the clock file has a recent heartbeat, even if we are suspended while reading it."""
    earliest = time.monotonic_ns() - _FROZEN_NS
    raw = os.pread(file, _BEAT + 8, 0)
    latest = time.monotonic_ns() + _AHEAD_NS
    if len(raw) < _BEAT + 8 or int.from_bytes(raw[:8], "little") != _MAGIC:
        return False
    return earliest < int.from_bytes(raw[_BEAT : _BEAT + 8], "little") < latest


def kill_frozen(folder: Path) -> None:
    """Kill the arbiter in *folder* if it does not beat: it would keep the lock.

    One that cannot be killed, or does not end in time, is left there.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (one := examine(folder)) is not None and not one.beats:
        if one.pid <= 0 or time.monotonic() > deadline:
            return
        try:
            os.kill(one.pid, signal.SIGKILL)
        except PermissionError:
            return
        except ProcessLookupError:
            pass
        time.sleep(0.005)
