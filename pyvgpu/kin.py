"""Which process of the machine is the one in a slot: told by the kernel, not by the process.

A slot holds the pid that its process has in its own pid namespace. NVML names processes by the
pids of the machine. They belong together if the kernel says that the process is called so in its
innermost namespace, and that it has the region's usage file mapped.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu import region

_PROC = Path("/proc")
_FIELDS = 6  # of a line of maps that names a file
_DELETED = b" (deleted)"  # what the kernel says behind the path of a file that was removed


class Kin:
    """The processes that have one usage file mapped."""

    def __init__(self, usage: int, proc: Path = _PROC) -> None:
        self._inode = str(os.fstat(usage).st_ino).encode()
        self._proc = proc
        self._known: dict[int, tuple[bytes, int | None]] = {}  # pid -> when it began, inner pid

    def slot_of(self, pid: int, processes: Sequence[region.SlotUsage]) -> int | None:
        """Return the slot of the machine's process *pid*; None if it is not of this region."""
        try:
            inner = self._inner_pid(pid)
        except OSError:  # it has ended, or it is not ours to look at
            self._known.pop(pid, None)
            return None
        slots = [process.slot for process in processes if process.pid == inner]
        # Two of one name in two namespaces: nobody can tell, so neither is blamed.
        return slots[0] if len(slots) == 1 else None

    def _inner_pid(self, pid: int) -> int | None:
        folder = self._proc / str(pid)
        # Bytes: a process may be called, and map, what is no text.
        began = (folder / "stat").read_bytes().rpartition(b")")[2].split()[19]
        known = self._known.get(pid)
        if known is None or known[0] != began:
            known = began, self._namespace_pid(folder) if self._has_mapped(folder) else None
            if known[1] is not None:  # another may map the file yet
                self._known[pid] = known
        return known[1]

    def _has_mapped(self, folder: Path) -> bool:
        for line in (folder / "maps").read_bytes().split(b"\n"):
            # Not the device: some file systems show another one here than to stat().
            fields = line.split(maxsplit=5)
            if len(fields) == _FIELDS and fields[4] == self._inode:
                path = fields[5].removesuffix(_DELETED)
                if path.rpartition(b"/")[2] == names.USAGE_FILE.encode():
                    return True
        return False

    @staticmethod
    def _namespace_pid(folder: Path) -> int:
        for line in (folder / "status").read_bytes().split(b"\n"):
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
        return int(folder.name)
