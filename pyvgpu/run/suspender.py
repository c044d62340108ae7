"""Suspend and resume the processes of one run, in its supervisor; see suspend_operation.py.

One thread at a time does the work, so that `pyvgpu suspend` and `pyvgpu resume` may be killed:
the supervisor ends what it has begun. The quota says first what is about to happen
(region.Suspension), and the janitor kills the processes of a gated run whose supervisor is dead:
none of them stays locked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, log, names, region
from pyvgpu.machine import move_record
from pyvgpu.run import checkpoint_calls, suspend_operation, suspension

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyvgpu.device import Device
    from pyvgpu.machine import holders, reservations
    from pyvgpu.machine.holders import LiveReservation

_SEEN_SECONDS = 2.0
_TIMEOUT_SECONDS = 5.0  # for a call in progress when the run ends


@dataclasses.dataclass(frozen=True, slots=True)
class RunTenant:
    """A run, as the operation sees it."""

    registries: reservations.Registries
    made: holders.Made

    @property
    def folder(self) -> Path:
        """The folder of its region."""
        return self.made.folder

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its only device."""
        return (self.made.share.device,)

    @property
    def must_show_cgroups(self) -> bool:
        """No: a machine may have none."""
        return False

    def read(self) -> region.Suspension:
        """Return what its quota says."""
        return region.read_limits(self.made.quota).suspension

    def mark(self, suspension_now: region.Suspension) -> None:
        """Write it, while no run is admitted."""
        self.registries.mark(self.made, suspension_now)

    def readmit(self) -> None:
        """Reserve its share again."""
        self.registries.readmit(self.made)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The result of the last order."""

    text: str = ""
    error: errors.PyVgpuError | None = None


class Suspender:
    """Suspends and resumes a run until it is stopped."""

    def __init__(
        self,
        registries: reservations.Registries,
        made: Callable[[], holders.Made],
        driver: checkpoint_calls.CheckpointDriver,
        obeyed: Callable[[suspend_operation.SuspendOrder], None] = lambda _order: None,
    ) -> None:
        """*made* returns the reservation as it is now; *obeyed* is called after each success."""
        self._registries = registries
        self._made = made
        self._driver = driver
        self._obeyed = obeyed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._seen = threading.Event()  # the report of the last order, by its client
        self._thread: threading.Thread | None = None
        self._order: suspend_operation.SuspendOrder | None = None  # in progress
        self._next: suspend_operation.SuspendOrder | None = None  # to the same state
        self._report = Report()
        self._saved: dict[int, suspend_operation.Need] = {}
        self._moves = move_record.MoveRecord()

    def begin(self, order: suspend_operation.SuspendOrder) -> None:
        """Begin with *order*, or go on with the same one; UnavailableError during another.

        A user's order follows one of the policy, which does the same, but would not last.
        """
        with self._lock:
            if self._order is not None:
                if self._order.desired is order.desired:
                    if order.is_manual and _result(order) != _result(self._order):
                        self._next = order
                    return
                doing = (
                    "suspended" if order.desired is suspension.DesiredState.RUNNING else "resumed"
                )
                raise errors.UnavailableError(f"it is just being {doing}; try again")
            self._order, self._report = order, Report()
            self._seen.clear()
            self._thread = threading.Thread(
                target=self._run, args=(order,), name="suspender", daemon=True
            )
            self._thread.start()

    def poll(self) -> tuple[bool, Report]:
        """Return whether an order is in progress, and the report of the last one."""
        with self._lock:
            done = self._report != Report() and self._next is None
            busy = self._order is not None and not done
            if not busy:
                self._seen.set()
            return busy, self._report

    def stop(self) -> None:
        """Stop, also between two calls of the driver."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_SECONDS)

    def _run(self, order: suspend_operation.SuspendOrder) -> None:
        following: suspend_operation.SuspendOrder | None = order
        try:
            while following is not None:
                with checkpoint_calls.Calls(self._driver) as calls:
                    tenant = RunTenant(self._registries, self._made())
                    operation = suspend_operation.Operation(
                        tenant, calls, self._stopped, self._saved
                    )
                    self._attempt(operation, following)
                following = self._take_next()
        finally:
            with self._lock:
                self._order = self._next = None

    def _take_next(self) -> suspend_operation.SuspendOrder | None:
        """End the order in progress; return the one that follows it, begun."""
        with self._lock:
            self._order, self._next = self._next, None
            if self._order is not None:
                self._report = Report()
                self._seen.clear()
            return self._order

    def _attempt(
        self, operation: suspend_operation.Operation, order: suspend_operation.SuspendOrder
    ) -> None:
        try:
            if order.desired is suspension.DesiredState.SUSPENDED:
                text = operation.suspend(order)
            else:
                text = operation.resume()
            self._obeyed(order)
            self._record(_succeeded(self._moves, order.desired, time.monotonic()), operation)
            self._conclude(Report(text or "done"))
        except suspend_operation.LostError as exc:
            self._give_up(operation, exc)
        except errors.PyVgpuError as exc:
            self._fail(operation, exc)
        except OSError as exc:
            self._fail(operation, errors.UnavailableError(str(exc)))
        except Exception:
            logging.getLogger(__name__).exception("could not %s the run", order.desired.value)
            self._fail(operation, errors.PyVgpuError("internal error, see its output"))

    def _fail(self, operation: suspend_operation.Operation, exc: errors.PyVgpuError) -> None:
        """Report the error, and let the run go on."""
        refused = self._moves.refused()
        self._record(refused, operation)
        self._conclude(Report(error=exc))
        try:
            operation.recover()
        except suspend_operation.LostError as lost:
            self._give_up(operation, lost)
        else:
            self._record(refused, operation)

    def _record(
        self, sums: move_record.MoveRecord, operation: suspend_operation.Operation
    ) -> None:
        """Write *sums*, to which the bytes of the operation are added."""
        moved = operation.moved
        self._moves = sums.moved(sum(moved.to_host), sum(moved.to_device))
        with contextlib.suppress(OSError):  # a full disk stops no run
            move_record.write(self._made().folder, self._moves)

    def _give_up(
        self, operation: suspend_operation.Operation, exc: suspend_operation.LostError
    ) -> None:
        """Kill the run's processes, of which one is lost."""
        log.say(str(exc))
        self._conclude(Report(error=exc))
        self._seen.wait(_SEEN_SECONDS)  # the supervisor ends with its program
        operation.kill()

    def _conclude(self, report: Report) -> None:
        with self._lock:
            self._report = report


def _result(order: suspend_operation.SuspendOrder) -> tuple[bool, bool]:
    """Return what an order leaves behind, beside the state of the processes."""
    return order.is_manual, order.keep


def _succeeded(
    sums: move_record.MoveRecord, desired: suspension.DesiredState, now: float
) -> move_record.MoveRecord:
    """Return the sums after an order; one that changed nothing is not counted."""
    is_suspension = desired is suspension.DesiredState.SUSPENDED
    if is_suspension == bool(sums.suspended_since):
        return sums
    return sums.suspended(now) if is_suspension else sums.resumed(now)


def kill_suspended(folder: Path) -> None:
    """Kill the processes of a dead supervisor's run in *folder* if nothing could resume them."""
    quota = os.open(folder / names.QUOTA_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not region.read_limits(quota).suspension.gated:
            return
        usage = os.open(folder / names.USAGE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for target in suspend_operation.find_processes(usage)[0]:
                target.kill()
        finally:
            os.close(usage)
    finally:
        os.close(quota)


def end_unsupervised(live: Sequence[LiveReservation]) -> None:
    """Kill the processes of suspended runs whose supervisor and janitor are dead.

    Of the caller's runs, for root of all: nothing could ever resume them.
    """
    for reservation in live:
        if reservation.limits.suspension.gated and os.geteuid() in (0, reservation.uid):
            with contextlib.suppress(OSError, errors.PyVgpuError):
                folder = os.open(reservation.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if not region.is_supervised(folder):
                        kill_suspended(reservation.folder)
                finally:
                    os.close(folder)


def parse_order(found: Mapping[str, Any]) -> suspend_operation.SuspendOrder:
    """Return the order of a client; DataError if it is not valid."""
    try:
        order = suspend_operation.SuspendOrder(
            suspension.DesiredState(found["suspension"]),
            bool(found.get("keep", False)),
            None if found.get("host_memory") is None else int(found["host_memory"]),
            float(found.get("lock_seconds", suspend_operation.LOCK_SECONDS)),
        )
        if not 0 < order.lock_seconds <= 3600:
            raise ValueError("lock_seconds")
        return order
    except (ValueError, KeyError, TypeError) as exc:
        raise errors.DataError(f"not an order to suspend: {exc}") from exc
