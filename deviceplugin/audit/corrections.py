"""Add usage that containers' ledgers lack to their quotas, from NVML's figures of each process.

For each grant of shares in use: see ledger_reconcile.py for the comparison, and tampering.py for
ledgers that something other than the shim has changed. A process without a slot, such as one that
brings its own driver, is charged to its container, too. The mounts of a process identify its
container, so the container can write nothing that changes the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyvgpu import errors, names, region
from pyvgpu.deviceplugin.containers import region_files
from pyvgpu.machine import ledger_reconcile, process_identity, tampering

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant

PERIOD_SECONDS = 0.4  # a lack counts after two polls, so within a second
REMEMBERED_SECONDS = 60.0  # for which a container's tampering is reported
_SETTLED = 3  # polls: further ones at the same ledger and processes find the same

Held = Mapping[str, Mapping[int, int]]  # by UUID: pid -> bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Tampering:
    """A change of a container's ledger that the shim did not make."""

    uuid: str  # of the device; empty: of the file as a whole
    pids: tuple[int, ...]
    text: str


class Corrections:
    """The corrections of all grants."""

    def __init__(self, folders: GrantStore) -> None:
        self._folders = folders
        self._regions: dict[str, _Region] = {}

    def sample(
        self, grants: Iterable[Grant], held: Held, pids: Mapping[str, Collection[int]]
    ) -> None:
        """Compare once; *pids* are the container's processes, by grant id."""
        there = set()
        for grant in grants:
            there.add(grant.id)
            with contextlib.suppress(OSError, errors.DataError):
                self._sample_grant(grant, held, pids.get(grant.id, ()))
        self._regions = {
            grant_id: known for grant_id, known in self._regions.items() if grant_id in there
        }

    def check(self, grants: Iterable[Grant]) -> None:
        """Look for values that no shim writes; a value counts if two calls in a row find it."""
        for grant in grants:
            known = self._regions.get(grant.id)
            if known is not None:
                with contextlib.suppress(OSError):
                    self._check(grant.id, known)

    def knows(self, grant_id: str) -> bool:
        """Return whether the last poll included the ledger of a grant."""
        return grant_id in self._regions

    def found(self, grant_id: str) -> tuple[Tampering, ...]:
        """Return a container's tamperings of the last minute, the newest first."""
        known = self._regions.get(grant_id)
        return () if known is None else known.found()

    def owned(self, grant_id: str) -> Collection[int]:
        """Return the pids that had a slot in the ledger of a grant at the last poll."""
        known = self._regions.get(grant_id)
        return () if known is None else known.pids

    def _sample_grant(self, grant: Grant, held: Held, pids: Collection[int]) -> None:
        path = self._folders.path(grant.id)
        with (
            region_files.folder_of(path) as folder,
            region_files.opened_in(
                folder, path, names.USAGE_FILE, region_files.READ_FILE
            ) as usage,
            region_files.opened_in(folder, path, names.QUOTA_FILE) as quota,
        ):
            files = (os.fstat(usage).st_ino, os.fstat(quota).st_ino)
            known = self._regions.get(grant.id)
            if known is None or known.files != files:
                known = _Region(files, grant, usage, quota)
                self._regions[grant.id] = known
            known.sample(usage, quota, held, pids)

    def _check(self, grant_id: str, known: _Region) -> None:
        with self._folders.opened_both(grant_id) as (usage, quota):
            found = region.find_impossible(usage, quota)
            known.note_impossible(found if region.is_used(usage) else ())


class _Region:
    """The reconciliation state of one grant's region, until one of its two files is replaced."""

    def __init__(self, files: tuple[int, int], grant: Grant, usage: int, quota: int) -> None:
        self.files = files
        self._uuids = tuple(share.uuid for share in grant.shares)
        self._usage, self._quota = usage, quota
        self._relatives = process_identity.SlotProcesses(usage)
        self._owners = tampering.Owners(self._relatives.likely_slot_of)
        self._held: tampering.Held = ()
        self._own: frozenset[int] = frozenset()  # pids of the container
        self._witness = tampering.Witness(
            self._owners, lambda pid: pid in self._own, region.SLOTS - 1
        )
        self._found: dict[tuple[str, int, str], tuple[float, Tampering]] = {}
        self._seen: tuple[object, ...] = ()  # all that the last poll depended on
        self._alike = 0  # polls in a row that depended on the same
        extra = region.read_extra(quota, len(self._uuids))
        self._reconciler = ledger_reconcile.Reconciler(
            ledger_reconcile.ReconcileSources(
                charges=lambda: region.read_counted_slots(self._usage, len(self._uuids)),
                measure=lambda: self._held,
                slot_of=self._owners.slot_of,
                has_ended=self._has_ended,
                publish=lambda extra: region.publish_extra(self._quota, extra),
                lacking=self._witness.find_lacking,
            ),
            {
                (device, slot): size
                for device, row in enumerate(extra)
                for slot, size in enumerate(row)
                if size
            },
        )

    @property
    def pids(self) -> Collection[int]:
        """The pids of the processes that have a slot."""
        return self._owners.pids

    def sample(self, usage: int, quota: int, held: Held, own: Collection[int]) -> None:
        """Compare once, with the files open; *own* are the pids of the container."""
        self._usage, self._quota, self._own = usage, quota, frozenset(own)
        self._held = tuple(
            {pid: size for pid, size in held.get(uuid, {}).items() if pid in own}
            for uuid in self._uuids
        )
        ledger = region.read_raw_slots(usage, len(self._uuids))
        if self._is_settled((ledger, self._held, self._own)):
            return
        self._reconciler.poll()
        self._owners.forget_dead()
        for change in self._witness.changes:
            uuid = self._uuids[change.device]
            found = Tampering(uuid, (change.pid,) if change.pid else (), change.text)
            self._note(found, (uuid, change.slot, "charge"))

    def _is_settled(self, seen: tuple[object, ...]) -> bool:
        """Return whether a poll that depends on *seen* would find what the last one has found."""
        self._alike = self._alike + 1 if seen == self._seen else 0
        self._seen = seen
        return (
            self._alike >= _SETTLED
            and not self._witness.changes
            and not self._reconciler.has_unmeasured
            and self._own.issuperset(self._owners.pids)
        )

    def note_impossible(self, found: tuple[str, ...]) -> None:
        """Record values that no shim writes."""
        for text in self._witness.confirm(found):
            self._note(Tampering("", (), text), (text, 0, ""))

    def found(self) -> tuple[Tampering, ...]:
        """Return the tamperings of the last minute, the newest first."""
        oldest = time.monotonic() - REMEMBERED_SECONDS
        self._found = {key: dated for key, dated in self._found.items() if dated[0] > oldest}
        newest = sorted(self._found.values(), key=lambda dated: -dated[0])
        return tuple(finding for _, finding in newest)

    def _note(self, found: Tampering, key: tuple[str, int, str]) -> None:
        self._found[key] = time.monotonic(), found

    def _has_ended(self, process: region.SlotUsage) -> bool:
        """Return whether the slot's process has ended: as recorded, else from the process."""
        remembered = self._owners.has_ended(process.slot)
        return self._relatives.has_ended(process) if remembered is None else remembered
