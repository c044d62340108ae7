"""Audit the memory of an active run against NVML: see ledger_reconcile.py for the comparison.

If something other than the shim changed the ledger (tampering.py), the missing bytes are counted,
and a file in the run's folder lets `pyvgpu ps` and `pyvgpu top` show it.

The audit has its own thread, because a driver that hangs must not block signals for the program.
It queries NVML of the bare driver, initialized only once a process of the run has a slot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import TYPE_CHECKING

from pyvgpu import device, errors, log, names, region
from pyvgpu.machine import ledger_reconcile, process_identity, tampering

if TYPE_CHECKING:
    from pathlib import Path

PERIOD_SECONDS = 0.4  # an excess counts after two periods, so within a second
PAUSE_SECONDS = 2.0  # before a retry: a device may come back
TIMEOUT_SECONDS = 1.0  # for a measurement in progress when the run ends


@dataclasses.dataclass(frozen=True, slots=True)
class Audited:
    """A run, and the driver that reports its memory."""

    quota: int  # descriptor of the quota file, the supervisor's
    usage: Path
    devices: tuple[device.Device, ...]  # of the quota, in its order
    libnvidia_ml: Path  # the driver's own
    machine: Path | None  # of a simulated driver


class RunAuditor:
    """Publishes memory that a run's processes hold beyond their charges, until it is stopped."""

    def __init__(self, audited: Audited) -> None:
        self._audited = audited
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="auditor", daemon=True)

    def start(self) -> None:
        """Start the audit; call this only after the last fork of this process."""
        self._thread.start()

    def stop(self) -> None:
        """Stop publishing. Harmless if the audit was never started."""
        with self._lock:
            self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        complained = False
        while not self._stopped.is_set():
            try:
                self._poll_until_stopped()
            except (OSError, errors.PyVgpuError) as exc:
                if not complained:
                    log.say(
                        f"cannot measure the memory of processes ({exc}): memory of modules "
                        "beyond the reserve for a context is not counted"
                    )
                complained = True
            self._stopped.wait(PAUSE_SECONDS)

    def _poll_until_stopped(self) -> None:
        usage = os.open(self._audited.usage, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while not region.is_used(usage):
                if self._stopped.wait(PERIOD_SECONDS):
                    return
            self._poll(usage)
        finally:
            os.close(usage)

    def _poll(self, usage: int) -> None:
        import pynvml

        from pyvgpu import nvml

        audited = self._audited
        if audited.machine is not None:
            os.environ[names.SIMULATED_MACHINE_VARIABLE] = str(audited.machine)
        count = len(audited.devices)
        relatives = process_identity.SlotProcesses(usage)
        owners = tampering.Owners(relatives.slot_of)
        witness = tampering.Witness(owners, relatives.is_relative, region.SLOTS - 1)
        reconciler = ledger_reconcile.Reconciler(
            ledger_reconcile.ReconcileSources(
                charges=lambda: region.read_counted_slots(usage, count),
                measure=lambda: tuple(
                    nvml.bytes_by_pid(gpu.uuid, gpu.uncounted_bytes) for gpu in audited.devices
                ),
                slot_of=owners.slot_of,
                has_ended=relatives.has_ended,
                publish=self._publish,
                lacking=witness.find_lacking,
            )
        )
        try:
            with nvml.session(audited.libnvidia_ml):
                while not self._stopped.wait(PERIOD_SECONDS):
                    reconciler.poll()
                    owners.forget_dead()
                    impossible = (
                        *region.find_impossible(usage, audited.quota),
                        *_find_replaced(audited.usage, usage),
                    )
                    for text in (
                        *(change.text for change in witness.changes),
                        *witness.confirm(impossible),
                    ):
                        self._mark(text)
        except pynvml.NVMLError as exc:
            raise errors.UnavailableError(f"NVML: {exc}") from exc
        finally:
            with contextlib.suppress(OSError):
                self._publish({})

    def _publish(self, extra: tampering.Excess) -> None:
        with self._lock:
            if not self._stopped.is_set():  # the descriptor may have been closed and reused
                region.publish_extra(self._audited.quota, extra)

    def _mark(self, text: str) -> None:
        """Let `pyvgpu ps` and `pyvgpu top` show that the run's ledger was tampered with."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._lock, contextlib.suppress(OSError):
            if self._stopped.is_set():  # the folder is being removed
                return
            file = os.open(self._audited.usage.parent / names.TAMPERED_FILE, flags, 0o644)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)


def _find_replaced(path: Path, usage: int) -> tuple[str, ...]:
    """Return what happened to the *usage* file at *path*: a new process would open another one."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ("its usage file was removed",)
    if os.path.samestat(found, os.fstat(usage)):
        return ()
    return ("its usage file was replaced",)
