"""Clean-up process of a run, which works however the run ended.

The supervisor forks it into a session of its own. It sleeps in one read until the supervisor is
dead; then in two lock requests, until the supervisor's lock is released and until the last process
of the run is dead. If the janitor is killed too, the next `pyvgpu run` does its work.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
from typing import TYPE_CHECKING

from pyvgpu import errors, region
from pyvgpu.machine import cgroups, mps_daemon, reservations
from pyvgpu.run import run_files, suspender

if TYPE_CHECKING:
    from pathlib import Path

_PR_SET_NAME = 15
_DONE = b"d"


@dataclasses.dataclass(frozen=True, slots=True)
class Leavings:
    """The files that a run leaves behind."""

    registries: reservations.Registries
    reservation: Path
    tree: Path
    tree_lock: int  # descriptor that supervisor and janitor keep open
    cgroup: Path | None = None  # the run's own
    files: tuple[Path, ...] = ()  # outside of these folders
    daemon: mps_daemon.Daemon | None = None  # of MPS, which the last run of its device ends


@dataclasses.dataclass(frozen=True, slots=True)
class Janitor:
    """The supervisor's end."""

    pid: int
    pipe: int
    detached: int  # pipe that reaches EOF once the janitor has closed inherited descriptors

    def wait_detached(self) -> None:
        """Wait until the janitor holds none of our locks, which takes only a moment."""
        os.read(self.detached, 1)
        os.close(self.detached)

    def dismiss(self) -> None:
        """End the janitor: there is nothing left to clean up."""
        with contextlib.suppress(OSError):
            os.write(self.pipe, _DONE)
        os.close(self.pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(leavings: Leavings) -> Janitor:
    """Fork the janitor; call this while the process has a single thread."""
    reading, writing = os.pipe()
    detached, attached = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reading)
        os.close(attached)
        return Janitor(pid, writing, detached)
    try:
        _detach(reading, attached, leavings.tree_lock)
        os.close(attached)
        if os.read(reading, 1) != _DONE:
            tidy(leavings)
    finally:
        os._exit(0)


def tidy(leavings: Leavings) -> None:
    """Wait until no live process uses the run's region, then remove the run's files.

    A killed supervisor releases the janitor's pipe a moment before its lock.
    """
    with contextlib.suppress(OSError, errors.PyVgpuError):
        folder = os.open(leavings.reservation, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _end_suspended(leavings.reservation, folder)
            region.wait_until_dead(folder)
        finally:
            os.close(folder)
        leavings.registries.forget(leavings.reservation)
    if leavings.daemon is not None:  # even if another process has removed the reservation
        with contextlib.suppress(OSError, errors.PyVgpuError):
            mps_daemon.end_if_unused(leavings.daemon, leavings.registries)
    run_files.remove(leavings.tree)
    for file in leavings.files:
        with contextlib.suppress(OSError):
            file.unlink()
    if leavings.cgroup is not None:
        cgroups.remove(leavings.cgroup)


def _end_suspended(reservation: Path, folder: int) -> None:
    """Once the supervisor is dead, kill the processes of a suspended run: none can resume them."""
    region.wait_until_unsupervised(folder)
    with contextlib.suppress(OSError, errors.PyVgpuError):
        suspender.kill_suspended(reservation)


def _detach(*keep: int) -> None:
    """Release all that is inherited from the supervisor: above all locks and standard streams."""
    os.setsid()
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pyvgpu-janitor", 0, 0, 0)
