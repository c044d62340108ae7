"""Which process of the machine is the one in a slot: told by the kernel, not by the process.

A slot holds the pid that its process has in its own pid namespace. NVML names processes by the
pids of the machine. They belong together if the kernel says that the process is called so in its
innermost namespace, which is the slot's, and that it has the region's usage file mapped.
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
_STAT_BYTES = 4096  # more than there are
_FIELDS = 6  # of a line of maps that names a file
_DELETED = b" (deleted)"  # what the kernel says behind the path of a file that was removed


@dataclasses.dataclass(frozen=True, slots=True)
class _Name:
    """What a process is called in its innermost pid namespace."""

    pid: int
    namespace: int  # inode; 0: nobody may see it


class Kin:
    """The processes that have one usage file mapped."""

    def __init__(self, usage: int, proc: Path = _PROC) -> None:
        self._inode = str(os.fstat(usage).st_ino).encode()
        self._proc = proc
        self._known: dict[int, tuple[bytes, _Name | None]] = {}  # pid -> when it began, its name
        self._ended: set[tuple[int, int]] = set()  # slot, and when it was claimed

    def slot_of(self, pid: int, processes: Sequence[region.SlotUsage]) -> int | None:
        """Return the slot of the machine's process *pid*; None if it is not of this region."""
        try:
            slots = _slots_of(self._name_of(pid), processes)
        except OSError:  # it has ended, or it is not ours to look at
            return None
        # Two of one name where a slot does not say its namespace: neither is blamed.
        return slots[0] if len(slots) == 1 else None

    def is_relative(self, pid: int) -> bool:
        """Tell whether process *pid* has the usage file mapped, whatever slots say."""
        try:
            return self._name_of(pid) is not None
        except OSError:
            return False

    def likely_slot_of(self, pid: int, processes: Sequence[region.SlotUsage]) -> int | None:
        """Return the slot of a process that is known to be in the region's container.

        To see what a process has mapped takes all capabilities that it has, or SYS_PTRACE; without
        them it is believed by its pid alone, which everybody may see.
        """
        slots = _slots_of(self._believed_name_of(pid), processes)
        return slots[0] if len(slots) == 1 else None

    def may_have_slot(self, pid: int, processes: Sequence[region.SlotUsage]) -> bool:
        """Tell whether process *pid* has one of these slots, by the same."""
        return bool(_slots_of(self._believed_name_of(pid), processes))

    def _believed_name_of(self, pid: int) -> _Name | None:
        try:
            return self._name_of(pid)
        except PermissionError:
            return _Name(_inner_pid(self._proc / str(pid)), 0)
        except OSError:
            return None

    def has_ended(self, process: region.SlotUsage) -> bool:
        """Tell whether the process that claimed a slot has ended, or called exec.

        Children that it forked may keep the slot. One that may not be looked at lives.
        """
        claim = process.slot, process.started_ns
        if claim not in self._ended:
            if any(self._is_claimer(folder, process) for folder in self._folders_of(process)):
                return False
            self._ended.add(claim)
        return True

    def _folders_of(self, process: region.SlotUsage) -> Iterator[Path]:
        """Yield the folders that may be the process's: one, if it counts in our namespace."""
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
        """Return what a process is called that has the region mapped; OSError if it has ended."""
        folder = self._proc / str(pid)
        try:
            began = _began(pid, self._proc)
        except OSError:
            self._known.pop(pid, None)
            raise
        known = self._known.get(pid)
        if known is None or known[0] != began:
            known = began, _inner_name(folder) if self._has_mapped(folder) else None
            if known[1] is not None:  # another may map the file yet
                self._known[pid] = known
        return known[1]

    def _has_mapped(self, folder: Path) -> bool:
        for line in _maps(folder).split(b"\n"):
            # Not the device: some file systems show another one here than to stat().
            fields = line.split(maxsplit=5)
            if len(fields) == _FIELDS and fields[4] == self._inode:
                path = fields[5].removesuffix(_DELETED)
                if path.rpartition(b"/")[2] == names.USAGE_FILE.encode():
                    return True
        return False


def began(pid: int, proc: Path = _PROC) -> bytes | None:
    """Return when process *pid* began, in the kernel's words; None if it has ended.

    With the pid it names a process, which the pid alone does not.
    """
    try:
        return _began(pid, proc)
    except (OSError, IndexError):
        return None


def _began(pid: int, proc: Path) -> bytes:
    # Several times a second for each process that is watched, so by no more than is needed.
    file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(file, _STAT_BYTES)
    finally:
        os.close(file)
    # Bytes: a process may be called, and map, what is no text.
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
    """Return the pid of a process in its innermost namespace; of one that has ended the outer."""
    with contextlib.suppress(OSError):
        for line in (folder / "status").read_bytes().split(b"\n"):
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return int(folder.name)


def _maps(folder: Path) -> bytes:
    """Return what a process has mapped: its first thread tells no more when that has ended.

    PermissionError if the kernel lets us see it of none.
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
