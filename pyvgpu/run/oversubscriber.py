"""Apply the policy of oversubscription to one run, in its supervisor: the shell of the policy.

Each supervisor decides on the same view of the device (pyvgpu.oversubscription), under the lock of
the reservations, and makes only the moves of its own run. So no process leads, a dead supervisor
takes nothing but its own run with it, and runs of several users take turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names, oversubscription, region
from pyvgpu.machine import reservations, run_tenants, tenant_record
from pyvgpu.run import suspend_operation, suspender, suspension

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.machine import holders
    from pyvgpu.machine.holders import LiveReservation
    from pyvgpu.machine.tenant_record import TenantRecord

LOCK_SECONDS = 2.0  # for the work of a run that is thought to be idle
WAIT_SECONDS = 60.0
REFUSED_SECONDS = 30.0  # until the next attempt to move a run that could not be moved
_MOST_PERIOD_SECONDS = 1.0
_POLL_SECONDS = 0.05  # at a move in progress
_TIMEOUT_SECONDS = 5.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclasses.dataclass(frozen=True, slots=True)
class OversubscribeRequest:
    """What `pyvgpu run --oversubscribe` was given."""

    wanted: holders.OversubscribedRequest
    wait_seconds: float = WAIT_SECONDS  # for room, before the start is refused


class Oversubscriber:
    """Moves one run until it is stopped."""

    def __init__(
        self, registries: reservations.Registries, made: Callable[[], holders.OwnReservation]
    ) -> None:
        """*made* returns the reservation as it is now."""
        self._registries = registries
        self._made = made
        self._period = _MOST_PERIOD_SECONDS
        self._attended = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wait_for_room(self, seconds: float) -> int | None:
        """Wait until the run may start, before any thread is started; needs blocked signals.

        Returns a signal that ends the wait. UnavailableError after *seconds* without room.
        """
        until = tenant_record.now() + seconds
        while True:
            with self._registries.frozen() as live:
                own = self._own(live)
                if own is None or own.record is None or not own.record.is_new:
                    return None
                reservations.write_record(own.folder, own.record.seen_at(tenant_record.now()))
                # The last attempt may have ended in the middle.
                has_room = not own.limits.suspension.released
                move = None if has_room else self._decide(own, live)
            if has_room or (move is not None and move.key == own.run_id):
                with contextlib.suppress(errors.UnavailableError):  # it was taken meanwhile
                    if not has_room:
                        self._registries.readmit(self._made())
                    self._registries.mark(self._made(), suspend_operation.RUNNING)
                    self._rewrite(
                        lambda record, now: dataclasses.replace(record, is_new=False, since=now)
                    )
                    return None
            if tenant_record.now() >= until:
                raise errors.UnavailableError(
                    f"no room within {seconds:g} s (--wait): the other runs on the device work, "
                    "or cannot be suspended"
                )
            # After a longer stop of this process (Ctrl-Z) sigtimedwait returns any number.
            time.sleep(min(0.2, self._period))
            if pending := signal.sigpending().intersection(_ENDING):
                return signal.sigwait(pending)

    def start(self, worker: suspender.Suspender) -> None:
        """Start the periodic decisions; call this only after the last fork of this process."""
        self._thread = threading.Thread(
            target=self._run, args=(worker,), name="oversubscriber", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the decisions. Harmless if they were never started."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_SECONDS)

    def note(self, order: suspend_operation.SuspendOrder) -> None:
        """Record that a command, and not the policy, has suspended or resumed the run."""
        if order.is_manual:
            suspended = order.desired is suspension.DesiredState.SUSPENDED
            self._rewrite(
                lambda record, now: dataclasses.replace(
                    record,
                    is_manual=suspended,
                    since=now,
                    moving_since=0.0,
                    suspended_at=now if suspended else record.suspended_at,
                )
            )

    def take_over(self, order: suspend_operation.SuspendOrder) -> str:
        """Let the policy resume the run, since a command has found no room; say so.

        Empty for an order of the policy.
        """
        if not order.is_manual:
            return ""
        self._rewrite(lambda record, now: dataclasses.replace(record, is_manual=False, since=now))
        return "has no room now, and is resumed in its turn once it wants to work"

    def _run(self, worker: suspender.Suspender) -> None:
        while not self._stopped.wait(self._period):
            try:
                self._step(worker)
            except (errors.PyVgpuError, OSError) as exc:
                logging.getLogger(__name__).debug("could not read the device's state: %s", exc)

    def _step(self, worker: suspender.Suspender) -> None:
        move, host_memory = self._claim()
        if move is None:
            return
        is_suspension = move.action is oversubscription.MoveAction.SUSPEND
        desired = (
            suspension.DesiredState.SUSPENDED if is_suspension else suspension.DesiredState.RUNNING
        )
        order = suspend_operation.SuspendOrder(
            desired, host_memory=host_memory, lock_seconds=LOCK_SECONDS, is_manual=False
        )
        try:
            worker.begin(order)
            while (found := worker.poll())[0]:
                if self._stopped.wait(_POLL_SECONDS):
                    return
                self._attend()
            error = found[1].error
        except errors.UnavailableError as exc:  # a command is just suspending or resuming it
            error = exc
        if error is None:
            self._rewrite(lambda record, now: record.arrived(now))
        else:
            self._rewrite(lambda record, now: record.stayed(now, REFUSED_SECONDS, str(error)))

    def _claim(self) -> tuple[oversubscription.Move | None, int | None]:
        """Return the next move if it is the run's own, recorded; and its limit of host memory."""
        with self._registries.frozen() as live:
            suspender.end_unsupervised(live)
            own = self._own(live)
            if own is None or own.record is None:
                return None, None
            record = own.record.seen_at(tenant_record.now())
            reservations.write_record(own.folder, record)
            if record.moving_since:  # no move is in progress: its end was not recorded
                settled = record.stayed(tenant_record.now(), 0.0, "")
                reservations.write_record(own.folder, settled)
                return None, None
            idle = record.rules.idle_seconds
            self._period = max(min(_MOST_PERIOD_SECONDS, idle / 4), len(live) / 50)
            move = _interrupted(own, record) or self._decide(own, live)
            if move is None or move.key != own.run_id:
                if not own.limits.suspension.gated:
                    region.renew(self._made().quota)
                return None, None
            resumed = move.action is oversubscription.MoveAction.RESUME
            reservations.write_record(
                own.folder, record.moved(tenant_record.now(), resumed=resumed)
            )
            return move, run_tenants.left_host_memory(own, live)

    def _own(self, live: Sequence[LiveReservation]) -> LiveReservation | None:
        run_id = self._made().run_id
        return next((x for x in live if x.run_id == run_id), None)

    def _decide(
        self, own: LiveReservation, live: Sequence[LiveReservation]
    ) -> oversubscription.Move | None:
        device = own.limits.devices[0]
        activities = {}
        for reservation in live:
            if (
                reservation.record is not None
                and reservation.limits.devices[0].uuid == device.uuid
            ):
                with (
                    contextlib.suppress(errors.PyVgpuError, OSError),
                    reservations.opened(reservation, names.USAGE_FILE) as file,
                ):
                    activities[reservation.run_id] = region.read_activity(file)
        now = tenant_record.now()
        pool = run_tenants.pool_of(device.uuid, device.memory_total, live)
        tenants = run_tenants.attended(
            run_tenants.tenants_of(device.uuid, live, activities), own.run_id, live, now
        )
        return oversubscription.decide(pool, tenants, now)

    def _attend(self) -> None:
        """Record each second that this supervisor attends to the move in progress."""
        if tenant_record.now() - self._attended >= _MOST_PERIOD_SECONDS:
            self._attended = tenant_record.now()
            with contextlib.suppress(errors.PyVgpuError, OSError):  # at the next one
                self._rewrite(tenant_record.TenantRecord.seen_at)

    def _rewrite(self, change: Callable[[TenantRecord, float], TenantRecord]) -> None:
        with self._registries.frozen() as live:
            own = self._own(live)
            if own is not None and own.record is not None:
                record = change(own.record, tenant_record.now())
                reservations.write_record(own.folder, record)


def _interrupted(own: LiveReservation, record: TenantRecord) -> oversubscription.Move | None:
    """Return the rest of a resumption that has reserved its room, and did not end."""
    mark = own.limits.suspension
    waits = record.is_manual or tenant_record.now() < record.refused_until
    if waits or not (mark.suspended and mark.kept):
        return None
    return oversubscription.Move(oversubscription.MoveAction.RESUME, own.run_id, own.run_id)
