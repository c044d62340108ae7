"""Active runs of this machine: their quotas, memory and usage.

``sample`` takes one sample. The share of a device's time that a run achieved is the difference of
two samples, which ``Watch`` computes. Files of other users are read, never mapped, and invalid
contents are left out.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, log, names, quantity, quota, region
from pyvgpu.allocator import isolation
from pyvgpu.machine import (
    holders,
    memory_limit,
    move_record,
    reservations,
    run_tenants,
    tenant_record,
    users,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyvgpu.machine.holders import LiveReservation
    from pyvgpu.machine.reservations import Registries

_LONGEST = 1000  # bytes of a text
_LONGEST_LIMIT = 8192  # of a names.LIMIT_FILE
HISTORY = 120  # past shares of each run and device


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One sample of an active run."""

    reservation: LiveReservation
    seconds: float  # monotonic time at which its counters were read
    usage: region.Usage | None  # None: its file cannot be read
    compute: tuple[region.Compute, ...]  # by device of the quota
    extra: tuple[tuple[int, ...], ...]  # bytes measured beyond all charges, by device and slot
    tampered: str = ""  # a change of its ledger by something other than the shim
    driver: memory_limit.Limit = memory_limit.NONE
    command_line: str = ""  # empty: of another user
    moves: move_record.MoveRecord | None = None  # None: cannot be read
    waiting: float = 0.0  # seconds for which it has waited for room


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process of a run, with its memory on one device."""

    pid: int  # in the process's own pid namespace
    name: str
    held: int  # bytes
    started: float  # seconds since the epoch


@dataclasses.dataclass(frozen=True, slots=True)
class RunShare:
    """The share of one run on one device."""

    run_id: str
    name: str
    uid: int
    pid: int  # of its supervisor
    command: str  # its program
    command_line: str  # with its arguments; empty: of another user
    created: float  # seconds since the epoch
    requested_vcore: int  # 0: no time was requested
    limits: region.DeviceLimits
    priority: quota.Priority
    held: int | None  # bytes; None: the ledger cannot be read
    refused: int  # allocations
    processes: tuple[Process, ...]
    share: float | None  # of the device's time, 0 to 1; None: not counted
    waited: float  # ns for which launches were throttled, per ns of the interval
    history: tuple[float, ...]  # past shares, the newest last
    tampered: str  # a change of its ledger by something other than the shim; empty: none
    driver_limit: int | None  # the driver's own memory limit in bytes; None: no limit
    driver_why: str  # why there is none, if the driver supports limits
    suspension: region.Suspension = dataclasses.field(default_factory=region.Suspension)
    record: tenant_record.TenantRecord | None = None  # None: it is not oversubscribed
    host: int = 0  # bytes of device memory that are in host memory while it is suspended
    busy_seconds: float = 0.0  # of the device's time, since its start
    throttled_seconds: float = 0.0  # for which its launches were throttled, since its start
    moves: move_record.MoveRecord | None = None  # None: cannot be read
    suspended_seconds: float = 0.0  # since its start
    waiting: float = 0.0  # seconds for which it has waited for room; 0: it does not wait

    @property
    def state(self) -> str:
        """Whether the run is running, suspended, or waits for room to start."""
        if self.record is not None and self.record.is_new:
            return "waiting"
        return "suspended" if self.suspension.suspended else "running"

    @property
    def isolation(self) -> isolation.Means:
        """The means that hold the run to its share."""
        return isolation.of_run(self.limits.uuid, self.limits.isolation)

    @property
    def full_name(self) -> str:
        """The name by which the caller addresses the run: USER/RUN for another user's."""
        return users.run_name(self.name, self.uid)

    @property
    def over(self) -> int:
        """The bytes that it holds beyond its quota, such as after `pyvgpu set` lowered it."""
        return max(0, (self.held or 0) - self.limits.vmemory)

    @property
    def reserved(self) -> int:
        """The bytes of the device that no other run can reserve."""
        if self.suspension.released:
            return 0
        return holders.reserved_bytes(self.limits, self.held)

    @property
    def reserved_vcore(self) -> int:
        """The percent of the device's time that no other run can reserve."""
        return 0 if self.suspension.released else self.requested_vcore


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceView:
    """One device, with the shares of all runs on it."""

    uuid: str
    name: str
    memory_bytes: int
    parts: tuple[RunShare, ...]  # all, in order of their start
    shown: tuple[RunShare, ...] | None = None  # those to show, in order; None: all

    @property
    def reserved_vcore(self) -> int:
        """The reserved percent of its time."""
        return sum(part.reserved_vcore for part in self.parts)

    @property
    def reserved_bytes(self) -> int:
        """The reserved bytes, including those that runs hold beyond their quotas."""
        return sum(part.reserved for part in self.parts)

    @property
    def held(self) -> int:
        """The bytes that runs hold."""
        return sum(part.held or 0 for part in self.parts)

    @property
    def share(self) -> float | None:
        """The part of its time that runs used; None if it is not counted."""
        counted = [part.share for part in self.parts if part.share is not None]
        return sum(counted) if counted else None


def sample(registries: Registries) -> tuple[Run, ...]:
    """Sample every active run, in order of their start."""
    found = (_read(reservation) for reservation in registries.live())
    return tuple(
        sorted(found, key=lambda run: (run.reservation.holder.created, run.reservation.run_id))
    )


class RunWatch:
    """Turns successive samples into shares and their history."""

    def __init__(self) -> None:
        self._before: dict[str, Run] = {}
        self._history: dict[tuple[str, int], collections.deque[float]] = {}

    def see(self, runs: Sequence[Run]) -> tuple[DeviceView, ...]:
        """Return the state of the devices; a run without an earlier sample has no share yet."""
        views: dict[str, list[RunShare]] = {}
        names_of: dict[str, str] = {}
        for run in runs:
            before = self._before.get(run.reservation.run_id)
            for index, limits in enumerate(run.reservation.limits.devices):
                key = (run.reservation.run_id, index)
                past = self._history.setdefault(key, collections.deque(maxlen=HISTORY))
                share, waited = _difference(before, run, index)
                if share is not None:
                    past.append(share)
                part = _part(run, index, share, waited, tuple(past))
                views.setdefault(limits.uuid, []).append(part)
                names_of.setdefault(limits.uuid, run.reservation.holder.device_name)
        self._before = {run.reservation.run_id: run for run in runs}
        self._history = {k: past for k, past in self._history.items() if k[0] in self._before}
        return tuple(
            DeviceView(uuid, names_of[uuid], parts[0].limits.memory_total, tuple(parts))
            for uuid, parts in sorted(views.items(), key=lambda x: (names_of[x[0]], x[0]))
        )


def _difference(before: Run | None, now: Run, index: int) -> tuple[float | None, float]:
    """Return the share of a device's time between two samples, and the throttled ratio."""
    elapsed_ns = 0.0 if before is None else (now.seconds - before.seconds) * 1e9
    if before is None or elapsed_ns <= 0 or index >= min(len(before.compute), len(now.compute)):
        return None, 0.0
    old, new = before.compute[index], now.compute[index]
    # The time of a run that may use the whole device is not counted.
    if now.reservation.limits.devices[index].vcore == quantity.WHOLE_DEVICE and not new.busy_ns:
        return None, 0.0
    share = (new.busy_ns - old.busy_ns) / elapsed_ns
    waited = (new.waited_ns - old.waited_ns) / elapsed_ns
    return min(1.0, max(0.0, share)), max(0.0, waited)


def _part(
    run: Run, index: int, share: float | None, waited: float, history: tuple[float, ...]
) -> RunShare:
    holder, usage = run.reservation.holder, run.usage
    slots: Iterable[region.SlotUsage] = () if usage is None else usage.slots
    extra = () if usage is None else run.extra[index]
    suspension = run.reservation.limits.suspension
    charged = None if usage is None else usage.charged[index] + sum(extra)
    on_device = not suspension.suspended
    return RunShare(
        run_id=run.reservation.run_id,
        name=holder.name,
        uid=run.reservation.uid,
        pid=holder.pid,
        command=holder.command,
        command_line=run.command_line,
        created=holder.created,
        requested_vcore=holder.vcore,
        limits=run.reservation.limits.devices[index],
        priority=run.reservation.limits.priority,
        held=charged if on_device else 0,
        refused=0 if usage is None else usage.refused[index],
        processes=tuple(
            Process(
                x.pid,
                log.printable(x.name),
                x.charged[index] + extra[x.slot] if on_device else 0,
                x.started_ns / 1e9,
            )
            for x in slots
        ),
        share=share,
        waited=waited,
        history=history,
        tampered=run.tampered,
        driver_limit=run.driver.sizes[index] if index < len(run.driver.sizes) else None,
        driver_why=run.driver.why,
        suspension=suspension,
        record=run.reservation.record,
        host=0 if on_device else charged or 0,
        busy_seconds=run.compute[index].busy_ns / 1e9 if index < len(run.compute) else 0.0,
        throttled_seconds=run.compute[index].waited_ns / 1e9 if index < len(run.compute) else 0.0,
        moves=run.moves,
        suspended_seconds=0.0 if run.moves is None else run.moves.seconds_suspended(run.seconds),
        waiting=run.waiting,
    )


def _read(reservation: LiveReservation) -> Run:
    devices = len(reservation.limits.devices)
    try:
        with reservations.opened(reservation, names.USAGE_FILE) as file:
            compute = region.read_compute(file, devices)
            seconds = time.monotonic()
            usage = region.read_settled_usage(file)
        with reservations.opened(reservation, names.QUOTA_FILE) as file:
            extra = region.read_extra(file, devices)
    except (OSError, errors.PyVgpuError):
        seconds, usage, compute, extra = time.monotonic(), None, (), ()
    return Run(
        reservation,
        seconds,
        usage,
        compute,
        extra,
        tampered=_read_tampered(reservation),
        driver=_read_driver(reservation),
        command_line=_read_command(reservation),
        moves=_read_moves(reservation),
        waiting=_read_waiting(reservation, seconds),
    )


def _read_moves(reservation: LiveReservation) -> move_record.MoveRecord | None:
    try:
        with reservations.opened(reservation, names.MOVES_FILE) as file:
            return move_record.load(os.read(file, move_record.BYTES))
    except FileNotFoundError:
        return move_record.MoveRecord()  # it has not been moved yet
    except (OSError, errors.PyVgpuError):
        return None


def _read_waiting(reservation: LiveReservation, now: float) -> float:
    """Return for how many seconds an oversubscribed run has waited for room to work."""
    if reservation.record is None or not reservation.limits.suspension.suspended:
        return 0.0
    try:
        with reservations.opened(reservation, names.USAGE_FILE) as file:
            activities = {reservation.run_id: region.read_activity(file)}
    except (OSError, errors.PyVgpuError):
        return 0.0
    uuid = reservation.limits.devices[0].uuid
    since = [x.wanted for x in run_tenants.tenants_of(uuid, [reservation], activities)]
    return max((max(0.0, now - begin) for begin in since if begin is not None), default=0.0)


def _read_command(reservation: LiveReservation) -> str:
    try:
        with reservations.opened(reservation, names.COMMAND_FILE) as file:
            raw = os.read(file, reservations.LONGEST_COMMAND)
            return log.printable(raw.decode("utf-8", "replace"))
    except (OSError, errors.PyVgpuError):  # another user's, or of an older version
        return ""


def _read_driver(reservation: LiveReservation) -> memory_limit.Limit:
    try:
        with reservations.opened(reservation, names.LIMIT_FILE) as file:
            found = memory_limit.load(os.read(file, _LONGEST_LIMIT))
            return dataclasses.replace(found, why=log.printable(found.why))
    except (OSError, errors.PyVgpuError):
        return memory_limit.NONE


def _read_tampered(reservation: LiveReservation) -> str:
    try:
        with reservations.opened(reservation, names.TAMPERED_FILE) as file:
            return log.printable(os.read(file, _LONGEST).decode("utf-8", "replace"))
    except FileNotFoundError:
        return ""
    except (OSError, errors.PyVgpuError) as exc:
        return f"{names.TAMPERED_FILE}: {exc}"
