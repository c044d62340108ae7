"""Suspends and resumes the processes of one run, in its supervisor; see suspend_operation.py.

One thread at a time does the work, and finishes it even if `pyvgpu suspend` or `pyvgpu resume` is
killed. It writes the intended state into the quota first (region.Suspension). If the supervisor is
killed meanwhile, the janitor kills the run's processes, so that none stays locked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, log, names, region
from pyvgpu.machine import move_record, process_identity
from pyvgpu.run import checkpoint_calls, suspend_operation, suspension

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.device import Device
    from pyvgpu.machine import holders, reservations
    from pyvgpu.machine.holders import LiveReservation

_REPORT_SECONDS = 2.0  # for the client to read the report of a lost process
_SCANS = 2  # of all processes
_STOP_SECONDS = 5.0  # for a call in progress when the run ends


@dataclasses.dataclass(frozen=True, slots=True)
class RunTenant:
    """A run in the role of :class:`suspend_operation.SuspendedTenant`."""

    registries: reservations.Registries
    reservation: holders.OwnReservation

    @property
    def folder(self) -> Path:
        """The folder of its region."""
        return self.reservation.folder

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its only device."""
        return (self.reservation.share.device,)

    @property
    def must_show_cgroups(self) -> bool:
        """False: the machine may have no cgroups with memory limits."""
        return False

    def read(self) -> region.Suspension:
        """Return the state in its quota."""
        return region.read_limits(self.reservation.quota).suspension

    def mark(self, suspension_now: region.Suspension) -> None:
        """Write the state into its quota, under the lock of admissions."""
        self.registries.mark(self.reservation, suspension_now)

    def readmit(self) -> None:
        """Reserve its share again; UnavailableError without room."""
        self.registries.readmit(self.reservation)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The result of the last order: *text* for the user, or *error*; neither: none yet."""

    text: str = ""
    error: errors.PyVgpuError | None = None


class Suspender:
    """Suspends and resumes a run, by orders, until :meth:`stop`."""

    def __init__(
        self,
        registries: reservations.Registries,
        reservation: Callable[[], holders.OwnReservation],
        driver: checkpoint_calls.CheckpointDriver,
        on_success: Callable[[suspend_operation.SuspendOrder], None] = lambda _order: None,
        without_room: Callable[[suspend_operation.SuspendOrder], str] = lambda _order: "",
    ) -> None:
        """*reservation* returns the run's current one; *on_success* is called after each order.

        *without_room* is called when a resumption has no room, and returns what becomes of the
        run; empty: it is refused.
        """
        self._registries = registries
        self._reservation = reservation
        self._driver = driver
        self._on_success = on_success
        self._without_room = without_room
        self._lock = threading.Lock()
        self._is_ending = False  # no order is begun any more
        self._stopped = threading.Event()
        self._reported = threading.Event()  # a client has read the report of the last order
        self._reported.set()
        self._concluded = 0.0  # when that report was made
        self._thread: threading.Thread | None = None
        self._order: suspend_operation.SuspendOrder | None = None  # in progress
        self._next: suspend_operation.SuspendOrder | None = None  # for the same state
        self._report = Report()
        self._saved: dict[int, suspend_operation.Need] = {}
        self._moves = move_record.MoveRecord()

    def begin(self, order: suspend_operation.SuspendOrder) -> None:
        """Begin with *order*; UnavailableError while one for another state is in progress.

        An order for the same state is ignored, unless it is a user's, and the one in progress is
        reported already, or differs in whether it lasts or keeps the reservation: then it follows
        that one.
        """
        with self._lock:
            if self._order is not None:
                if self._order.desired is order.desired:
                    is_decided = self._report != Report()  # what remains is to recover from it
                    if order.is_manual and (
                        is_decided or _lasting(order) != _lasting(self._order)
                    ):
                        self._next = order
                    return
                doing = (
                    "suspended" if order.desired is suspension.DesiredState.RUNNING else "resumed"
                )
                raise errors.UnavailableError(f"it is just being {doing}; try again")
            if self._is_ending:
                raise _ended()
            self._order, self._report = order, Report()
            if order.is_manual:
                self._reported.clear()
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
                self._reported.set()
            return busy, self._report

    def stop(self) -> None:
        """Stop, also between two calls of the driver, once a waiting client has its report.

        A resumption ends first: its program may just have ended, and its processes go on.
        """
        with self._lock:
            self._is_ending = True
            resumes = (
                self._order is not None and self._order.desired is suspension.DesiredState.RUNNING
            )
        if self._thread is not None:
            if resumes:
                self._thread.join(_STOP_SECONDS)
            self._stopped.set()
            self._thread.join(_STOP_SECONDS)
            self._reported.wait(max(0.0, self._concluded + _REPORT_SECONDS - time.monotonic()))

    def _run(self, order: suspend_operation.SuspendOrder) -> None:
        following: suspend_operation.SuspendOrder | None = order
        try:
            while following is not None:
                with checkpoint_calls.Calls(self._driver) as calls:
                    tenant = RunTenant(self._registries, self._reservation())
                    operation = suspend_operation.Operation(
                        tenant, calls, self._stopped, self._saved
                    )
                    self._attempt(operation, following)
                following = self._take_next()
        finally:
            with self._lock:
                self._order = self._next = None

    def _take_next(self) -> suspend_operation.SuspendOrder | None:
        """End the order in progress; return the next one, now in progress; None: none."""
        with self._lock:
            self._order, self._next = self._next, None
            if self._order is not None:
                self._report = Report()
                self._reported.clear()
            return self._order

    def _attempt(
        self, operation: suspend_operation.Operation, order: suspend_operation.SuspendOrder
    ) -> None:
        try:
            if order.desired is suspension.DesiredState.SUSPENDED:
                text = operation.suspend(order)
            else:
                text = operation.resume()
            self._on_success(order)
            self._record(_succeeded(self._moves, order.desired, time.monotonic()), operation)
            self._conclude(Report(text or "done"))
        except suspend_operation.LostError as exc:
            self._give_up(operation, exc)
        except suspend_operation.NoRoomError as exc:
            text = ""
            with contextlib.suppress(errors.PyVgpuError, OSError):  # then it is refused
                text = self._without_room(order)
            if text:
                self._conclude(Report(f"{text}: {exc}"))
            else:
                self._fail(operation, exc)
        except errors.PyVgpuError as exc:
            self._fail(operation, _ended() if self._stopped.is_set() else exc)
        except OSError as exc:
            self._fail(operation, errors.UnavailableError(str(exc)))
        except Exception:
            logging.getLogger(__name__).exception("could not %s the run", order.desired.value)
            self._fail(operation, errors.PyVgpuError("internal error, see its output"))

    def _fail(self, operation: suspend_operation.Operation, exc: errors.PyVgpuError) -> None:
        """Report the error, and let the run continue."""
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
        """Write *sums* plus the bytes that the operation has moved."""
        moved = operation.moved
        self._moves = sums.moved(sum(moved.to_host), sum(moved.to_device))
        with contextlib.suppress(OSError):  # a full disk stops no run
            move_record.write(self._reservation().folder, self._moves)

    def _give_up(
        self, operation: suspend_operation.Operation, exc: suspend_operation.LostError
    ) -> None:
        """Kill the run's processes, since one of them can never be restored."""
        log.say(str(exc))
        self._conclude(Report(error=exc))
        self._reported.wait(_REPORT_SECONDS)  # before the supervisor ends with its program
        operation.kill()

    def _conclude(self, report: Report) -> None:
        with self._lock:
            self._report, self._concluded = report, time.monotonic()


def _ended() -> errors.UnavailableError:
    return errors.UnavailableError("its program has just ended")


def _lasting(order: suspend_operation.SuspendOrder) -> tuple[bool, bool]:
    """Return the part of an order that lasts, beside the state of the processes."""
    return order.is_manual, order.keep


def _succeeded(
    sums: move_record.MoveRecord, desired: suspension.DesiredState, now: float
) -> move_record.MoveRecord:
    """Return the sums after an order at *now*, which counts only if it changed the state."""
    is_suspension = desired is suspension.DesiredState.SUSPENDED
    if is_suspension == bool(sums.suspended_since):
        return sums
    return sums.suspended(now) if is_suspension else sums.resumed(now)


def kill_suspended(folder: Path) -> bool:
    """Kill the processes of the run in *folder* if it is gated; return whether there were any.

    Its supervisor is dead: nothing could resume them, nor the calls of children that they forked.
    Each has a line about it on its standard error. Raises OSError or DataError if the run's files
    cannot be read.
    """
    written: set[tuple[int, int]] = set()
    killed = False
    quota = os.open(folder / names.QUOTA_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not region.read_limits(quota).suspension.gated:
            return False
        usage = os.open(folder / names.USAGE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            processes = process_identity.SlotProcesses(usage)
            for _ in range(_SCANS):  # a process may fork until it is killed
                for pid in processes.writers():
                    target = suspend_operation.Target(pid, process_identity.began(pid))
                    _tell(target, written)
                    target.kill()
                    killed = True
        finally:
            os.close(usage)
    finally:
        os.close(quota)
    return killed


def _tell(target: suspend_operation.Target, written: set[tuple[int, int]]) -> None:
    """Write why a process is killed to its standard error, unless that would block.

    Only for processes of the caller's user, who may write to what they have open; and once to each
    of the files *written*.
    """
    process = Path(f"/proc/{target.pid}")
    with contextlib.suppress(OSError, ValueError):
        opened = (process / "fd/2").stat()
        place = opened.st_dev, opened.st_ino
        if place in written or process.stat().st_uid != os.geteuid() or not _is_writable(process):
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(process / "fd/2", flags)
        try:
            written.add(place)
            os.write(
                file,
                b"pyvgpu: the supervisor of this run has ended while the run was suspended; "
                b"killed its process %d, which nothing could resume\n" % target.pid,
            )
        finally:
            os.close(file)


def _is_writable(process: Path) -> bool:
    """Return whether a process has opened its standard error for writing."""
    for line in (process / "fdinfo/2").read_text(encoding="ascii").splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def end_unsupervised(live: Sequence[LiveReservation]) -> None:
    """Kill the processes of gated runs of *live* that have neither supervisor nor janitor.

    Nothing could resume them. Only the caller's own runs, unless it is root; it hears of them.
    """
    for reservation in live:
        if reservation.limits.suspension.gated and os.geteuid() in (0, reservation.uid):
            with contextlib.suppress(OSError, errors.PyVgpuError):
                folder = os.open(reservation.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if not region.is_supervised(folder) and kill_suspended(reservation.folder):
                        log.say(
                            f"{reservation.name} was suspended when its supervisor was killed; "
                            "its processes, which nothing could resume, were killed"
                        )
                finally:
                    os.close(folder)


def parse_order(found: Mapping[str, Any]) -> suspend_operation.SuspendOrder:
    """Return a client's order; DataError if it is not valid."""
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
