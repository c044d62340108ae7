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


class Kin:
    """The processes that have one usage file mapped."""

    def __init__(self, usage: int, proc: Path = _PROC) -> None:
        self._inode = str(os.fstat(usage).st_ino)
        self._proc = proc
        self._known: dict[int, tuple[str, int | None]] = {}  # pid -> when it began, inner pid

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
        began = (folder / "stat").read_text().rpartition(")")[2].split()[19]
        known = self._known.get(pid)
        if known is None or known[0] != began:
            known = began, self._namespace_pid(folder) if self._has_mapped(folder) else None
            if known[1] is not None:  # another may map the file yet
                self._known[pid] = known
        return known[1]

    def _has_mapped(self, folder: Path) -> bool:
        for line in (folder / "maps").read_text().splitlines():
            # Not the device: some file systems show another one here than to stat().
            fields = line.split(maxsplit=5)
            if fields[4] == self._inode and Path(fields[5]).name == names.USAGE_FILE:
                return True
        return False

    @staticmethod
    def _namespace_pid(folder: Path) -> int:
        for line in (folder / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return int(folder.name)
