"""Periodic audit of the processes on the devices; quota_audit.py defines the findings.

Several times a second, usage that containers' ledgers lack is added to their quotas: see
corrections.py. Each second NVML's samples of device time are recorded: see device_time.py.

A finding is an event for the pod, and if the administrator chose so, the process is killed: one in
a container, never one of the node itself. The audit needs the node's pid namespace (hostPID),
since NVML reports its pids; without it the audit is off, and the log says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import device, errors, names, nvml, quantity, quota, region
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.audit import corrections, device_time, quota_audit
from pyvgpu.deviceplugin.containers import process_owner
from pyvgpu.deviceplugin.grants import events
from pyvgpu.machine import mounts, process_identity
from pyvgpu.volumes import tree_users

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from ctypes import c_void_p
    from pathlib import Path

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0
_IDLE_SECONDS = 1.0  # between two looks for grants while there are none
_FRESH_SECONDS = 2.0  # an older sample of device time is stale


@dataclasses.dataclass(frozen=True, slots=True)
class AuditorDependencies:
    """The auditor's actions and callbacks."""

    action: agent_settings.AuditAction = agent_settings.AuditAction.REPORT
    report: Callable[[events.GrantEvent], None] = lambda _: None
    ended: Callable[[], None] = lambda: None  # called for each process that was killed
    doomed: Callable[[int], None] = lambda _: None  # called with the pid before it is killed
    # Called in an NVML session with all grants of shares, and the processes of each.
    limit: Callable[[Iterable[Grant], Mapping[str, Collection[int]]], None] = lambda *_: None
    servers: Callable[[], Collection[int]] = tuple  # pids of the agent's own MPS servers


def pause_seconds(granted: Collection[str]) -> float:
    """Return the time between two comparisons with ledgers: longer while there are no grants.

    A grant exists before its container, so the first comparison is not late.
    """
    return corrections.PERIOD_SECONDS if granted else _IDLE_SECONDS


class Auditor:
    """Audits from :meth:`run` until :meth:`stop`."""

    def __init__(
        self,
        library: Path,
        folders: GrantStore,
        granted: Callable[[], Mapping[str, Grant]],
        means: AuditorDependencies | None = None,
        devices: Callable[[], Mapping[str, device.Device]] = lambda: {},
    ) -> None:
        """*devices* returns the driver's devices, by UUID."""
        self._library = library
        self._devices = devices
        self._folders = folders
        self._granted = granted
        self._means = means or AuditorDependencies()
        self._stopped = threading.Event()
        self._before: list[quota_audit.Violation] = []
        self._confirmed: list[quota_audit.Violation] = []
        self._ended: set[int] = set()  # pids of killed processes that have not exited yet
        self.seen = quota_audit.NOTHING  # by the last audit
        self.sees_all = tree_users.sees_all()
        self._corrections = corrections.Corrections(folders)
        self._times = device_time.Times()
        self._known: dict[
            int, tuple[bytes | None, process_owner.Whose]
        ] = {}  # by pid, with start time

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()

    def run(self) -> None:
        """Audit periodically; retry while NVML does not work."""
        if not self.sees_all:
            log.warning(
                "the audit is off: comparing the usage of processes needs the node's own pids "
                "(hostPID: true)"
            )
            return
        silent = False
        while not self._stopped.is_set():
            try:
                with nvml.session(self._library):
                    silent = False
                    self._watch()
            except (OSError, pynvml.NVMLError, errors.PyVgpuError) as exc:
                if not silent:
                    log.warning("the audit could not read the usage of processes: %s", exc)
                silent = True
                self._stopped.wait(PERIOD_SECONDS)

    def _watch(self) -> None:
        """Audit until it is stopped; at once when a ledger was tampered with."""
        audited = sampled = -PERIOD_SECONDS
        known: set[str] = set()
        while not self._stopped.is_set():
            self.correct()
            now = time.monotonic()
            if now - sampled >= device_time.SAMPLE_SECONDS:
                self.sample(now)
                sampled = now
            tampered = {grant for grant in self._grants() if self._corrections.found(grant)}
            if now - audited >= PERIOD_SECONDS or tampered - known:
                self.poll()
                audited = now
            known = tampered
            self._stopped.wait(pause_seconds(self._granted()))

    def correct(self) -> None:
        """Add usage that the containers' ledgers lack, once, in an NVML session."""
        shared = self._shared()
        devices = self._devices()
        held = {
            uuid: {pid: size + _uncounted(devices, uuid) for pid, size in by_pid.items()}
            for uuid, by_pid in _held_of(
                {share.uuid for one in shared for share in one.shares}
            ).items()
        }
        pids: dict[str, set[int]] = {}
        for pid, owner in self._remembered(
            {pid for sizes in held.values() for pid in sizes}
        ).items():
            pids.setdefault(owner.grant, set()).add(pid)
        self._means.limit(shared, pids)
        # Children of a killed process may keep memory that NVML attributes to no process.
        used = [
            grant
            for grant in shared
            if grant.id in pids
            or (self._corrections.knows(grant.id) and self._folders.is_used(grant.id))
        ]
        self._corrections.sample(used, held, pids)

    def sample(self, now: float) -> None:
        """Record NVML's samples of the containers that could exceed their time limit."""
        allowed = {
            (share.uuid, grant.id): most
            for grant in self._shared()
            for share in grant.shares
            if (most := _most_percent(grant, share)) + device_time.TOLERANCE_PERCENT
            < quantity.WHOLE_DEVICE
        }
        sampled = {uuid: _percents(uuid) for uuid in {uuid for uuid, _ in allowed}}
        used = {key: 0 for key in allowed if sampled[key[0]] is not None}
        owners = self._remembered({pid for by_pid in sampled.values() for pid in by_pid or ()})
        for uuid, by_pid in sampled.items():
            for pid, percent in (by_pid or {}).items():
                if pid in owners and (uuid, owners[pid].grant) in used:
                    used[uuid, owners[pid].grant] += percent
        self._times.note(
            now, {key: device_time.TimeSample(ratio, allowed[key]) for key, ratio in used.items()}
        )

    def poll(self) -> None:
        """Audit once, in an NVML session."""
        grants = self._grants()
        self._corrections.check(self._shared())
        seen, now = self._find(grants)
        wrong = quota_audit.confirmed(self._before, now)
        self._before, self.seen = now, seen
        known = {confirmed.key for confirmed in self._confirmed}
        self._confirmed = wrong
        for finding in wrong:
            if finding.key not in known:
                log.warning("found that %s", finding.text)
                self._report(finding, grants)
        if self._means.action is agent_settings.AuditAction.KILL:
            self._ended &= {pid for by_pid in seen.held.values() for pid in by_pid}
            for finding, pid in quota_audit.doomed(wrong, seen, grants):
                if pid not in self._ended:
                    self._end(finding, pid, grants)

    def _grants(self) -> dict[str, Grant]:
        return {grant.id: grant for grant in self._granted().values() if grant.bound}

    def _find(
        self, grants: Mapping[str, Grant]
    ) -> tuple[quota_audit.ProcessSnapshot, list[quota_audit.Violation]]:
        """Return the current processes and the findings."""
        found = _held_of({share.uuid for grant in grants.values() for share in grant.shares})
        servers = frozenset(self._means.servers())
        held = {
            uuid: {pid: size for pid, size in by_pid.items() if pid not in servers}
            for uuid, by_pid in found.items()
        }
        pids = {pid for by_pid in held.values() for pid in by_pid}
        owners = self._remembered(pids)
        tampered = {grant: said for grant in grants if (said := self._corrections.found(grant))}
        seen = quota_audit.ProcessSnapshot(
            held, owners, self._shimmed(owners), self._times.above(), tampered
        )
        return seen, quota_audit.find(seen, grants, {uuid: _label(uuid) for uuid in held})

    def _owners(self, pids: Collection[int]) -> dict[int, process_owner.Whose]:
        """Return the owner of each live process."""
        if not pids:
            return {}
        registry = mounts.origin(self._folders.folder)
        asked = {pid: process_owner.whose(pid, registry) for pid in pids}
        return {pid: found for pid, found in asked.items() if found is not None}

    def _shared(self) -> list[Grant]:
        return [grant for grant in self._grants().values() if not grant.whole]

    def _remembered(self, pids: Collection[int]) -> dict[int, process_owner.Whose]:
        """Return the owner of each process, cached as long as the process lives."""
        began = {pid: process_identity.began(pid) for pid in {*pids, *self._known}}
        known = {
            pid: known_owner
            for pid, known_owner in self._known.items()
            if known_owner[0] == began[pid] is not None
        }
        new = self._owners(set(pids) - known.keys())
        self._known = known | {pid: (began[pid], owner) for pid, owner in new.items()}
        return {pid: self._known[pid][1] for pid in pids if pid in self._known}

    def _report(
        self,
        finding: quota_audit.Violation,
        grants: Mapping[str, Grant],
        reason: events.Reason = events.Reason.BYPASSED,
        words: str = "its quota is not enforced",
    ) -> None:
        """Write an event for the pod; the event recorder suppresses repetitions."""
        if finding.kind is quota_audit.ViolationKind.TAMPERED:
            reason, words = (
                events.Reason.TAMPERED,
                "the memory measured by NVML is counted instead",
            )
        if not finding.pod:
            return
        owners = (grant.owner for grant in grants.values())
        owner = next(
            (
                candidate
                for candidate in owners
                if candidate is not None and candidate.uid == finding.pod
            ),
            None,
        )
        namespace, pod = (owner.namespace, owner.pod) if owner else ("", "")
        text = f"{finding.text}: {words}"
        self._means.report(events.GrantEvent(finding.pod, namespace, pod, text, reason))

    def _end(self, finding: quota_audit.Violation, pid: int, grants: Mapping[str, Grant]) -> None:
        """Kill a process for a finding, if it still holds once the pid cannot be reused."""

        def still() -> bool:
            _, now = self._find(grants)
            return any(current.key == finding.key and pid in current.pids for current in now)

        def sure() -> bool:
            found = still()
            if found:
                self._means.doomed(pid)
            return found

        try:
            if not _kill(pid, sure):
                return
        except OSError as exc:
            log.warning("could not kill process %d: %s", pid, exc.strerror)
            return
        self._ended.add(pid)
        log.warning("killed process %d: %s", pid, finding.text)
        self._means.ended()
        words = f"process {pid} was killed for it (--audit-action=kill)"
        self._report(finding, grants, events.Reason.ENDED, words)

    @property
    def findings(self) -> tuple[quota_audit.Violation, ...]:
        """The current findings that two audits have confirmed."""
        return tuple(self._confirmed)

    def _shimmed(self, owners: Mapping[int, process_owner.Whose]) -> frozenset[int]:
        """Return the pids that have a live slot in the ledger of their grant."""
        found: set[int] = set()
        for grant_id in {owner.grant for owner in owners.values() if owner.grant}:
            own = {pid for pid, owner in owners.items() if owner.grant == grant_id}
            # A process that ever had a slot keeps it, whatever was written there since.
            owned = own & set(self._corrections.owned(grant_id))
            found |= owned
            if own > owned:
                with contextlib.suppress(OSError, errors.DataError):
                    found |= self._live(grant_id, own - owned)
        return frozenset(found)

    def _live(self, grant_id: str, pids: Iterable[int]) -> set[int]:
        with self._folders.opened(grant_id, names.USAGE_FILE) as usage:
            slots = region.read_slots(usage, 0)
            relatives = process_identity.SlotProcesses(usage)
            return {pid for pid in pids if relatives.may_have_slot(pid, slots)}


def _most_percent(grant: Grant, share: datatypes.NodeShare) -> int:
    """Return the percentage of a device's time that a container may use at most."""
    if grant.policy is quota.TimePolicy.ELASTIC:
        return grant.ceiling or quantity.WHOLE_DEVICE
    return share.vcore


def _uncounted(devices: Mapping[str, device.Device], uuid: str) -> int:
    """Return the bytes of a device that each process takes, but that NVML does not count."""
    known = devices.get(uuid)
    return 0 if known is None else known.uncounted_bytes


def _held_of(uuids: Collection[str]) -> dict[str, Mapping[int, int]]:
    """Return the bytes that processes hold, by device and pid, where NVML can tell."""
    return {uuid: by_pid for uuid in uuids if (by_pid := _held(uuid)) is not None}


def _percents(uuid: str) -> Mapping[int, int] | None:
    """Return the percentages of a device's time that processes use; None if not available."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        if _is_closed(uuid, handle):
            return None
        return nvml.sm_percent_by_pid(handle, time.time() - _FRESH_SECONDS)
    except pynvml.NVMLError as exc:
        if exc.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND):
            return None
        raise


def _held(uuid: str) -> Mapping[int, int] | None:
    """Return the bytes that processes hold of a device; None if not available: no finding."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return None if _is_closed(uuid, handle) else nvml.bytes_by_pid_of(handle)
    except pynvml.NVMLError as exc:
        if exc.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND):
            return None
        raise


def _is_closed(uuid: str, handle: c_void_p) -> bool:
    """Return whether NVML would list the processes of a device only with more privileges.

    That is so for a GPU in MIG mode, not for its MIG devices.
    """
    return not device.is_instance(uuid) and nvml.is_in_mig_mode(handle)


def _label(uuid: str) -> str:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return f"gpu{pynvml.nvmlDeviceGetIndex(handle)}"


def _kill(pid: int, still: Callable[[], bool]) -> bool:
    """Kill process *pid* of our pid namespace if *still* returns true; whether it was killed.

    A pid can be reused at any time, but a pidfd always refers to the same process. So *still* is
    called once the pidfd is open: its checks by pid then see this process, or none.
    PermissionError without the right to kill it.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not still():
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True
