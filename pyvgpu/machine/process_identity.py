"""Match NVML's processes to slots by what the kernel says, not by what the process says.

A slot holds the pid that its process has in its own pid namespace. NVML reports the machine's
pids. They match if the kernel says that the process has the slot's pid in its innermost
namespace, that this is the slot's namespace, and that it has the region's usage file mapped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyvgpu import region

_PROC = Path("/proc")
_STAT_BYTES = 4096  # more than a stat file has
_FIELDS = 6  # of a line of maps that names a file
_DELETED = b" (deleted)"  # the kernel's suffix to the path of a removed file


@dataclasses.dataclass(frozen=True, slots=True)
class _Name:
    """The pid of a process in its innermost pid namespace."""

    pid: int
    namespace: int  # inode; 0: we may not read it


class SlotProcesses:
    """Finds the processes that have a usage file mapped."""

    def __init__(self, usage: int, proc: Path = _PROC) -> None:
        self._inode = str(os.fstat(usage).st_ino).encode()
        self._proc = proc
        self._known: dict[int, tuple[bytes, _Name | None]] = {}  # pid -> start time, name
        self._ended: set[tuple[int, int]] = set()  # slot, and the time of its claim

    def slot_of(self, pid: int, processes: Sequence[region.SlotUsage]) -> int | None:
        """Return the slot of the machine's process *pid*; None if it is not of this region."""
        try:
            slots = _slots_of(self._name_of(pid), processes)
        except OSError:  # it has ended, or we may not inspect it
            return None
        # Ambiguous if two slots have this pid and one does not name its namespace: match neither.
        return slots[0] if len(slots) == 1 else None

    def is_relative(self, pid: int) -> bool:
        """Return whether process *pid* has the usage file mapped, whatever the slots contain."""
        try:
            return self._name_of(pid) is not None
        except OSError:
            return False

    def writers(self) -> Iterator[int]:
        """Yield the machine's pids that have the usage file mapped for writing.

        Those of processes that load the shim, and of children that they forked, even if these
        have no slot; the arbiter only reads it.
        """
        for folder in self._proc.iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended, or we may not inspect it
                    if self._has_mapped(folder, b"rw"):
                        yield int(folder.name)

    def likely_slot_of(self, pid: int, processes: Sequence[region.SlotUsage]) -> int | None:
        """Return the slot of a process that is known to be in the region's container.

        To read the mappings of a process we need all its capabilities, or SYS_PTRACE; without
        them it is matched by its pid alone, which any process may read.
        """
        slots = _slots_of(self._believed_name_of(pid), processes)
        return slots[0] if len(slots) == 1 else None

    def may_have_slot(self, pid: int, processes: Sequence[region.SlotUsage]) -> bool:
        """Return whether process *pid* has one of these slots, by the same criteria."""
        return bool(_slots_of(self._believed_name_of(pid), processes))

    def _believed_name_of(self, pid: int) -> _Name | None:
        try:
            return self._name_of(pid)
        except PermissionError:
            return _Name(_inner_pid(self._proc / str(pid)), 0)
        except OSError:
            return None

    def has_ended(self, process: region.SlotUsage) -> bool:
        """Return whether the process that claimed a slot has ended, or called exec.

        Its forked children may keep the slot. A process that we may not inspect counts as alive.
        """
        claim = process.slot, process.started_ns
        if claim not in self._ended:
            if any(self._is_claimer(folder, process) for folder in self._folders_of(process)):
                return False
            self._ended.add(claim)
        return True

    def _folders_of(self, process: region.SlotUsage) -> Iterator[Path]:
        """Yield the possible /proc folders of a process: one, if its pid is of our namespace."""
        if process.pid_namespace == (self._proc / "self" / "ns" / "pid").stat().st_ino:
            yield self._proc / str(process.pid)
        else:
            yield from (folder for folder in self._proc.iterdir() if folder.name.isdigit())

    def _is_claimer(self, folder: Path, process: region.SlotUsage) -> bool:
        try:
            if not (folder.exists() and _inner_pid(folder) == process.pid):
                return False
            name = _inner_name(folder)
            return bool(_slots_of(name, [process])) and self._has_mapped(folder)
        except PermissionError:
            return True
        except OSError:
            return False

    def _name_of(self, pid: int) -> _Name | None:
        """Return the name of a process, None if it has not mapped the region; OSError if ended."""
        folder = self._proc / str(pid)
        try:
            began = _began(pid, self._proc)
        except OSError:
            self._known.pop(pid, None)
            raise
        known = self._known.get(pid)
        if known is None or known[0] != began:
            known = began, _inner_name(folder) if self._has_mapped(folder) else None
            if known[1] is not None:  # a process without the mapping may still map the file
                self._known[pid] = known
        return known[1]

    def _has_mapped(self, folder: Path, access: bytes = b"") -> bool:
        for line in _maps(folder).split(b"\n"):
            # Do not compare the device: some file systems show another one here than in stat().
            fields = line.split(maxsplit=5)
            if (
                len(fields) == _FIELDS
                and fields[4] == self._inode
                and fields[1].startswith(access)
            ):
                path = fields[5].removesuffix(_DELETED)
                if path.rpartition(b"/")[2] == names.USAGE_FILE.encode():
                    return True
        return False


def began(pid: int, proc: Path = _PROC) -> bytes | None:
    """Return the start time of process *pid*, as the kernel writes it; None if it has ended.

    Together with the pid it identifies a process, which the pid alone does not.
    """
    try:
        return _began(pid, proc)
    except (OSError, IndexError):
        return None


def _began(pid: int, proc: Path) -> bytes:
    # Keep this cheap: it runs several times a second for each watched process.
    file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(file, _STAT_BYTES)
    finally:
        os.close(file)
    # Bytes: names of processes and mapped files need not be valid text.
    return content.rpartition(b")")[2].split()[19]


def _slots_of(name: _Name | None, processes: Sequence[region.SlotUsage]) -> list[int]:
    if name is None:
        return []
    return [
        process.slot
        for process in processes
        if process.pid == name.pid
        and (not name.namespace or process.pid_namespace in (0, name.namespace))
    ]


def _inner_name(folder: Path) -> _Name:
    return _Name(_inner_pid(folder), (folder / "ns" / "pid").stat().st_ino)


def _inner_pid(folder: Path) -> int:
    """Return the pid of a process in its innermost namespace; the outer pid if it has ended."""
    with contextlib.suppress(OSError):
        for line in (folder / "status").read_bytes().split(b"\n"):
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return int(folder.name)


def _maps(folder: Path) -> bytes:
    """Return the mappings of a process, from any thread: an ended first thread shows none.

    PermissionError if the kernel denies access for all threads.
    """
    refused: PermissionError | None = None
    for thread in (folder, *(folder / "task").iterdir()):
        try:
            if content := (thread / "maps").read_bytes():
                return content
        except PermissionError as exc:
            refused = exc
        except OSError:
            continue
    if refused is not None:
        raise refused
    return b""
