"""The driver's own memory limit for a run, set on a cgroup of its own; see memory_limit.py.

The cgroup is a child of `pyvgpu run`'s own, so limits of that still apply to the run. This needs
root. If it fails, the run continues without: a file in the run's folder gives the reason.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import names, nvml
from pyvgpu.machine import cgroups, memory_limit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_PREFIX = "pyvgpu-"
_CONTROL = "cgroup.subtree_control"
_DMEM = "dmem"


class RunLimit:
    """The driver's limit for one run, from :meth:`begin` to :meth:`end`."""

    def __init__(self, library: Path, machine: Path | None, reservation: Path, uuid: str) -> None:
        """*library* is the driver's NVML, *reservation* the run's folder, *uuid* its device."""
        self._library = library
        self._machine = machine
        self._reservation = reservation
        self._uuid = uuid
        self.cgroup: Path | None = None  # for the program
        self._given: tuple[int, ...] = ()  # the limit that is in effect

    def begin(self, vmemory: int, live: Collection[str]) -> None:
        """Create the cgroup and set its limit; *live* are the ids of active runs."""
        if os.geteuid() != 0:
            return
        with contextlib.suppress(OSError, pynvml.NVMLError):
            if nvml.has_function(
                self._library, memory_limit.FUNCTION
            ):  # avoids a useless NVML session
                with self._session():
                    self._begin(vmemory, live)

    def change(self, vmemory: int) -> None:
        """Adapt the limit to a change of the run's quota."""
        if self.cgroup is None:
            return
        try:
            with self._session():
                given = memory_limit.put(self._uuid, self.cgroup, vmemory)
        except (OSError, pynvml.NVMLError, memory_limit.NotSetError) as exc:
            why = f"could not be changed: {exc}"
            self._note(memory_limit.Limit((str(self.cgroup),), self._given, why))
        else:
            self._given = (given,)
            self._note(memory_limit.Limit((str(self.cgroup),), self._given))

    def give_up(self, why: str) -> None:
        """Record that the program could not be put into the cgroup."""
        self.end()
        self.cgroup = None
        self._note(memory_limit.Limit(why=why))

    def end(self) -> None:
        """Remove the cgroup, unless a process is in it: then the limit stays until it ends."""
        if self.cgroup is not None:
            cgroups.remove(self.cgroup)

    def _begin(self, vmemory: int, live: Collection[str]) -> None:
        if not memory_limit.is_offered(self._uuid):
            return
        try:
            self._note(self._make(vmemory, live))
        except OSError as exc:
            self.give_up(f"{exc.filename}: {exc.strerror}")
        except memory_limit.NotSetError as exc:
            self.give_up(str(exc))

    def _make(self, vmemory: int, live: Collection[str]) -> memory_limit.Limit:
        parent = cgroups.of_process()
        if parent is None:
            raise memory_limit.NotSetError("no cgroup v2 is mounted for this process")
        _sweep(parent, live)
        self.cgroup = parent / f"{_PREFIX}{self._reservation.name}"
        self.cgroup.mkdir()
        _enable(parent)
        self._given = (memory_limit.put(self._uuid, self.cgroup, vmemory),)
        return memory_limit.Limit((str(self.cgroup),), self._given)

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        if self._machine is not None:
            os.environ[names.SIMULATED_MACHINE_VARIABLE] = str(self._machine)
        with nvml.session(self._library):
            yield

    def _note(self, limit: memory_limit.Limit) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):
            file = os.open(self._reservation / names.LIMIT_FILE, flags, 0o644)
            try:
                os.write(file, limit.dump())
            finally:
                os.close(file)


def _sweep(parent: Path, live: Collection[str]) -> None:
    """Remove the cgroups of ended runs whose last processes have ended since."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder.name.removeprefix(_PREFIX) not in live:
            cgroups.remove(folder)


def _enable(parent: Path) -> None:
    """Enable the kernel's dmem controller for the children of a cgroup, if possible.

    Not possible while *parent* itself has processes. A driver with its own accounting needs none.
    """
    with contextlib.suppress(OSError):
        (parent / _CONTROL).write_text(f"+{_DMEM}")
