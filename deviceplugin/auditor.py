"""Look each few seconds at what processes hold of the devices; see audit.py for what is wrong.

It needs the node's own pids (hostPID), since that is how NVML names processes; without them
nothing is looked at, which is said.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import errors, kin, names, nvml, region
from pyvgpu.deviceplugin import audit, whose
from pyvgpu.volumes import uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.folders import Folders
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0


class Auditor:
    """Audits from :meth:`run` until :meth:`stop`."""

    def __init__(
        self, library: Path, folders: Folders, granted: Callable[[], Mapping[str, Grant]]
    ) -> None:
        self._library = library
        self._folders = folders
        self._granted = granted
        self._stopped = threading.Event()
        self._before: list[audit.Finding] = []
        self._told: list[audit.Finding] = []

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()

    def run(self) -> None:
        """Look again and again; what cannot be asked is asked the next time."""
        if not uses.sees_all():
            log.warning(
                "not comparing what processes hold of devices: that takes the node's own pids "
                "(hostPID: true)"
            )
            return
        silent = False
        while not self._stopped.is_set():
            try:
                with nvml.session(self._library):
                    silent = False
                    while not self._stopped.is_set():
                        self.look()
                        self._stopped.wait(PERIOD_SECONDS)
            except (OSError, pynvml.NVMLError, errors.PyVgpuError) as exc:
                if not silent:
                    log.warning("could not compare what processes hold: %s", exc)
                silent = True
                self._stopped.wait(PERIOD_SECONDS)

    def look(self) -> None:
        """Look once, in a session of NVML."""
        grants = {it.id: it for it in self._granted().values() if it.bound}
        uuids = {share.uuid for it in grants.values() for share in it.shares}
        held = {uuid: by_pid for uuid in uuids if (by_pid := _held(uuid)) is not None}
        pids = {pid for by_pid in held.values() for pid in by_pid}
        asked = {pid: whose.whose(pid, self._folders.folder) for pid in pids}
        owners = {pid: found for pid, found in asked.items() if found is not None}
        seen = audit.Seen(held, owners, self._shimmed(owners))
        now = audit.find(seen, grants, {uuid: _label(uuid) for uuid in held})
        wrong = audit.confirmed(self._before, now)
        self._before = now
        if [it.key for it in wrong] != [it.key for it in self._told]:
            for finding in wrong:
                log.warning("found that %s", finding.text)
            self._told = wrong

    @property
    def findings(self) -> tuple[audit.Finding, ...]:
        """What is wrong now, as two looks have seen it."""
        return tuple(self._told)

    def _shimmed(self, owners: Mapping[int, whose.Whose]) -> frozenset[int]:
        """Return the pids that have a live slot in the ledger of their grant."""
        found: set[int] = set()
        for grant_id in {it.grant for it in owners.values() if it.grant}:
            own = [pid for pid, it in owners.items() if it.grant == grant_id]
            with contextlib.suppress(OSError, errors.DataError):
                found |= self._live(grant_id, own)
        return frozenset(found)

    def _live(self, grant_id: str, pids: Iterable[int]) -> set[int]:
        path = self._folders.path(grant_id) / names.USAGE_FILE
        usage = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            slots = region.read_slots(usage, 0)
            relatives = kin.Kin(usage)
            return {pid for pid in pids if relatives.slot_of(pid, slots) is not None}
        finally:
            os.close(usage)


def _held(uuid: str) -> Mapping[int, int] | None:
    """Return what processes hold of a device; None if it cannot be asked, which is no finding."""
    try:
        return nvml.bytes_by_pid(uuid)
    except pynvml.NVMLError as exc:
        if exc.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND):
            return None
        raise


def _label(uuid: str) -> str:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return f"gpu{pynvml.nvmlDeviceGetIndex(handle)}"
