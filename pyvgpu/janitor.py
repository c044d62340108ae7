"""The process that tidies up after a run, however the run ended.

It is forked by the supervisor, in a session of its own, and sleeps in one read until the
supervisor is dead; then in two lock requests, until the supervisor's own lock has gone with it and
until the last process of the run is dead. If it is killed too, the next `pyvgpu run` does its
work.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
from typing import TYPE_CHECKING

from pyvgpu import cgroups, errors, promises, region, tree

if TYPE_CHECKING:
    from pathlib import Path

_PR_SET_NAME = 15
_DONE = b"d"


@dataclasses.dataclass(frozen=True, slots=True)
class Leavings:
    """What a run leaves behind."""

    books: promises.Books
    promise: Path
    tree: Path
    tree_lock: int  # descriptor, kept open for the life of supervisor and janitor
    cgroup: Path | None = None  # of its own


@dataclasses.dataclass(frozen=True, slots=True)
class Janitor:
    """The supervisor's end."""

    pid: int
    pipe: int
    detached: int  # ends when the janitor has let go of what it was born with

    def wait_detached(self) -> None:
        """Wait until the janitor holds none of our locks; it is there in a moment."""
        os.read(self.detached, 1)
        os.close(self.detached)

    def dismiss(self) -> None:
        """End the janitor: there is nothing left to tidy."""
        with contextlib.suppress(OSError):
            os.write(self.pipe, _DONE)
        os.close(self.pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(leavings: Leavings) -> Janitor:
    """Fork the janitor; to be called while the process has one thread."""
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
    """Wait until nobody lives who has part in the run's region, then remove the run's files.

    A supervisor that is killed lets go of the janitor's pipe a moment before its lock.
    """
    with contextlib.suppress(OSError, errors.PyVgpuError):
        folder = os.open(leavings.promise, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            region.wait_until_dead(folder)
        finally:
            os.close(folder)
        leavings.books.forget(leavings.promise)
    tree.remove(leavings.tree)
    if leavings.cgroup is not None:
        cgroups.remove(leavings.cgroup)


def _detach(*keep: int) -> None:
    """Let go of everything of the supervisor's, above all its locks and its standard streams."""
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
