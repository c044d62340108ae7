"""The shared file of a virtual clock (csrc/bench/share/virtualclock.h).

Programs that preload its library read their time there, so that their measurements do not depend
on other load on this computer.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VARIABLE = "SHARE_CLOCK"
LIBRARY = "libvirtualclock.so"
TIMEOUT_SECONDS = 600
_THREADS = 128  # VIRTUALCLOCK_THREADS
_GATHER, _GOES = 1, 2
_AWAY = 2  # VIRTUALCLOCK_AWAY


class _Thread(ctypes.Structure):
    _fields_ = (
        ("thread", ctypes.c_uint32),
        ("process", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("wakes", ctypes.c_uint32),
        ("at_ns", ctypes.c_uint64),
        ("waits_for", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 4),
    )


class _Clock(ctypes.Structure):
    _fields_ = (
        ("mode", ctypes.c_uint32),
        ("forced", ctypes.c_uint32),
        ("frontier_ns", ctypes.c_uint64),
        ("leap_ns", ctypes.c_int64),
        ("step_ns", ctypes.c_int64),
        ("unused", ctypes.c_uint64 * 4),
        ("threads", _Thread * _THREADS),
    )


class Clock:
    """The file of a virtual clock; it shows real time until it is started."""

    def __init__(self, path: Path, library: Path) -> None:
        self.path = path
        self._library = library
        if not path.exists():
            path.write_bytes(bytes(ctypes.sizeof(_Clock)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._shared = _Clock.from_buffer(self._map)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for programs that use this clock."""
        # The loader splits LD_PRELOAD at blanks and colons, which the checkout's path may contain.
        library = self.path.with_name(LIBRARY)
        if not library.is_symlink():
            library.symlink_to(self._library)
        return {"LD_PRELOAD": str(library), VARIABLE: str(self.path)}

    def move(self, leap_ns: int, step_ns: int) -> None:
        """Let CLOCK_MONOTONIC leap forward, and step CLOCK_REALTIME."""
        self._shared.leap_ns += leap_ns
        self._shared.step_ns += step_ns

    @property
    def forced(self) -> int:
        """How often the clock advanced although a thread lagged behind."""
        return int(self._shared.forced)

    def is_any_away(self, processes: set[int]) -> bool:
        """Return whether a thread of *processes* does not follow the clock now."""
        return any(
            t.thread and t.process in processes and t.state == _AWAY for t in self._shared.threads
        )

    def gather(self) -> None:
        """Make every thread that reads the time wait for start()."""
        self._shared.mode = _GATHER

    def start(self, processes: set[int], threads: Mapping[int, int] | None = None) -> None:
        """Start once so many *threads* of each of *processes* wait, including its main thread.

        Another thread may arrive first, while the main thread still sleeps by the real clock: it
        would miss what happens until then.
        """
        wanted = {process: (threads or {}).get(process, 1) for process in processes}
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._are_there(wanted):
            if time.monotonic() > deadline:
                raise errors.UnavailableError("not all programs reached the start")
            time.sleep(0.002)
        self._shared.mode = _GOES

    def _are_there(self, wanted: Mapping[int, int]) -> bool:
        there = [(t.process, t.thread) for t in self._shared.threads if t.thread]
        processes = [process for process, _ in there]
        return all(
            (process, process) in there and processes.count(process) >= count
            for process, count in wanted.items()
        )
