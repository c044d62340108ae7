"""Suspend and resume the processes of one run, in its supervisor: the shell of suspension.py.

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
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, log, names, quantity, region
from pyvgpu.machine import cgroups, host_memory, process_identity
from pyvgpu.run import checkpoint_calls, suspension

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.machine import holders, reservations

ROOM_BYTES = 256 << 20  # of a GPU, left free by a restore beyond what it needs
LOCK_SECONDS = 10.0
_CALL_SECONDS = 10.0
_COPY_SECONDS = 60.0
_COPY_RATE = 200_000_000  # bytes per second, slower than any link
_SETTLE_SECONDS = 10.0  # for processes that are beginning or ending
_PAUSE_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_SEEN_SECONDS = 2.0
_PATIENCE_SECONDS = 5.0  # for a call in progress when the run ends
_PROC = Path("/proc")
_UVM = b"/dev/nvidia-uvm"

RUNNING = region.Suspension()
_GATED = region.Suspension(gated=True)


class RefusedError(errors.UnavailableError):
    """A process cannot be suspended; it goes on."""


class LostError(errors.UnavailableError):
    """A process can never be restored."""


@dataclasses.dataclass(frozen=True, slots=True)
class SuspendOrder:
    """What to do."""

    wish: suspension.Wish
    keep: bool = False  # the reservation
    host_memory: int | None = None  # most host memory that may be used, bytes
    lock_seconds: float = LOCK_SECONDS  # for calls and work in progress


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """One process of the run."""

    pid: int
    began: bytes | None  # identifies it together with the pid
    slot: int = -1  # in the ledger

    @property
    def is_alive(self) -> bool:
        """Whether it is still this process."""
        return process_identity.began(self.pid) == self.began

    def kill(self) -> None:
        """Kill it, and no other that has its pid by now."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


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
    ) -> None:
        """*made* returns the reservation as it is now."""
        self._registries = registries
        self._made = made
        self._driver = driver
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._seen = threading.Event()  # the report of the last order, by its client
        self._thread: threading.Thread | None = None
        self._order: SuspendOrder | None = None  # in progress
        self._report = Report()
        self._saved: dict[int, int] = {}  # bytes of each process that is checkpointed

    def begin(self, order: SuspendOrder) -> None:
        """Begin with *order*, or go on with the same one; UnavailableError during another."""
        with self._lock:
            if self._order is not None:
                if self._order.wish is order.wish:
                    return
                doing = "suspended" if order.wish is suspension.Wish.RUNNING else "resumed"
                raise errors.UnavailableError(f"it is just being {doing}; try again")
            self._order, self._report = order, Report()
            self._seen.clear()
            self._thread = threading.Thread(
                target=self._run, args=(order,), name="suspender", daemon=True
            )
            self._thread.start()

    def look(self) -> tuple[bool, Report]:
        """Return whether an order is in progress, and the report of the last one."""
        with self._lock:
            busy = self._order is not None and self._report == Report()
            if not busy:
                self._seen.set()
            return busy, self._report

    def stop(self) -> None:
        """Stop, also between two calls of the driver."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def _run(self, order: SuspendOrder) -> None:
        try:
            with checkpoint_calls.Calls(self._driver) as calls:
                operation = Operation(
                    self._registries, self._made(), calls, self._stopped, self._saved
                )
                self._attempt(operation, order)
        finally:
            with self._lock:
                self._order = None

    def _attempt(self, operation: Operation, order: SuspendOrder) -> None:
        try:
            if order.wish is suspension.Wish.SUSPENDED:
                text = operation.suspend(order)
            else:
                text = operation.resume()
            self._conclude(Report(text or "done"))
        except LostError as exc:
            log.say(str(exc))
            self._conclude(Report(error=exc))
            self._seen.wait(_SEEN_SECONDS)  # the supervisor ends with its program
            operation.kill()
        except errors.PyVgpuError as exc:
            self._conclude(Report(error=exc))
            operation.recover()
        except OSError as exc:
            self._conclude(Report(error=errors.UnavailableError(str(exc))))
            operation.recover()
        except Exception:
            logging.getLogger(__name__).exception("could not %s the run", order.wish.value)
            self._conclude(Report(error=errors.PyVgpuError("internal error, see its output")))
            operation.recover()

    def _conclude(self, report: Report) -> None:
        with self._lock:
            self._report = report


class Operation:
    """One suspension or resumption."""

    def __init__(
        self,
        registries: reservations.Registries,
        made: holders.Made,
        calls: checkpoint_calls.Calls,
        stopped: threading.Event,
        saved: dict[int, int],
    ) -> None:
        self._registries = registries
        self._made = made
        self._calls = calls
        self._stopped = stopped
        self._saved = saved
        self._targets: dict[int, Target] = {}
        self._copy_seconds = _COPY_SECONDS

    def suspend(self, order: SuspendOrder) -> str:
        """Suspend all processes, or none; return a line for the user."""
        before = self._suspension
        if before.suspended:
            if before.kept == order.keep:
                return "is suspended already"
            kept = dataclasses.replace(before, kept=order.keep)
            if order.keep:
                self._registries.readmit(self._made)
            else:
                self._mark(kept)
            return f"is suspended already; its reservation is {_kept(keep=order.keep)} now"
        self._calls.check_offered()
        self._find_targets()
        self._check_targets()
        needs = self._measure()
        limits = host_memory.find(tuple(needs))
        margin = host_memory.MARGIN_BYTES
        host_memory.check(
            {pid: size + margin for pid, size in needs.items()}, limits, order.host_memory
        )
        self._mark(_GATED)
        self._wait_for_waits(order.lock_seconds)
        self._drive(suspension.Wish.SUSPENDED, order.lock_seconds)
        self._saved.clear()
        self._saved.update(needs)
        self._mark(region.Suspension(True, True, order.keep))
        size = quantity.format_size(sum(needs.values()))
        return (
            f"suspended: {size} moved to host memory, its reservation is {_kept(keep=order.keep)}"
        )

    def resume(self) -> str:
        """Resume all processes; UnavailableError without room, and they stay suspended."""
        before = self._suspension
        if not before.gated:
            return "is running already"
        self._calls.check_offered()
        self._find_targets()
        for pid in self._targets:
            if checkpoint_calls.is_stopped(_PROC / str(pid)):
                raise RefusedError(
                    f"process {pid}: it is stopped; `kill -CONT {pid}` continues it"
                )
        if before.suspended:
            self._registries.readmit(self._made)
            try:
                self._check_room()
            except errors.PyVgpuError:
                self._mark(before)
                raise
        self._drive(suspension.Wish.RUNNING, _CALL_SECONDS)
        self._mark(RUNNING)
        self._saved.clear()
        return "resumed"

    def kill(self) -> None:
        """Kill all processes: none can go on without one that is lost."""
        for target in self._targets.values():
            target.kill()

    def recover(self) -> None:
        """Let a run that could not be suspended go on, however long its processes are stopped."""
        while not self._stopped.is_set():
            try:
                found = self._suspension
                if not found.gated or found.suspended:
                    return
                self._find_targets()
                self._drive(suspension.Wish.RUNNING, _CALL_SECONDS)
                self._mark(RUNNING)
            except (errors.PyVgpuError, OSError):
                self._stopped.wait(_RETRY_SECONDS)
            else:
                return

    def _mark(self, suspension_now: region.Suspension) -> None:
        """Write the flags of the quota, whose descriptor is closed when the run ends."""
        if self._stopped.is_set():
            raise RefusedError("the run is ending")
        self._registries.mark(self._made, suspension_now)

    # --- the run's processes ------------------------------------------------------------------

    @property
    def _suspension(self) -> region.Suspension:
        return region.read_limits(self._made.quota).suspension

    @contextlib.contextmanager
    def _usage(self) -> Any:
        path = self._made.folder / names.USAGE_FILE
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield file
        finally:
            os.close(file)

    def _find_targets(self) -> None:
        """Find the processes of all slots; RefusedError if one has ended and its slot is kept."""
        until = time.monotonic() + _SETTLE_SECONDS
        while True:
            with self._usage() as usage:
                found, missing = find_processes(usage)
            self._targets.update({target.pid: target for target in found})
            if not missing:
                break
            if time.monotonic() > until:
                raise RefusedError(
                    f"process {missing[0]} has ended, and a child that it forked keeps its memory"
                )
            self._stopped.wait(_PAUSE_SECONDS)
        self._targets = {pid: x for pid, x in self._targets.items() if x.is_alive}

    def _check_targets(self) -> None:
        with self._usage() as usage:
            shares = any(any(slot.opened) for slot in region.read_slots(usage, 1))
        if shares:
            raise RefusedError(
                "its processes share device memory with each other, which cannot be moved"
            )
        for pid in self._targets:
            reason = find_obstacle(_PROC / str(pid))
            if reason is not None:
                raise RefusedError(f"process {pid}: {reason}")

    def _measure(self) -> dict[int, int]:
        """Return the bytes that each process holds on the device, by NVML and the ledger.

        NVML's pids may be of another pid namespace, and the ledger lacks what no call asked for.
        """
        device = self._made.share.device
        memory = self._calls.memory(device.uuid, device.uncounted_bytes)
        with self._usage() as usage:
            charged = {slot.slot: slot.charged[0] for slot in region.read_slots(usage, 1)}
        needs = {
            pid: max(memory.by_pid.get(pid, 0), charged.get(target.slot, 0))
            for pid, target in self._targets.items()
        }
        self._copy_seconds = _COPY_SECONDS + sum(needs.values()) / _COPY_RATE
        return needs

    def _check_room(self) -> None:
        """Raise UnavailableError unless a restore has room; without, it fails for good."""
        device = self._made.share.device
        needed = sum(size for pid, size in self._saved.items() if pid in self._targets)
        self._copy_seconds = _COPY_SECONDS + needed / _COPY_RATE
        wanted = needed + (0 if self._calls.is_simulated else ROOM_BYTES)
        free = self._calls.memory(device.uuid, 0).free
        if needed and free < wanted:
            raise errors.UnavailableError(
                f"it needs {quantity.format_size(wanted)} of {device.label}, and "
                f"{quantity.format_size(free)} is free: processes outside of runs hold the rest"
            )

    # --- calls --------------------------------------------------------------------------------

    def _wait_for_waits(self, seconds: float) -> None:
        """Wait until no thread is in a call that must not be in a locked driver."""
        until = time.monotonic() + seconds
        while True:
            with self._usage() as usage:
                waiting = sum(slot.waiting for slot in region.read_slots(usage, 1))
            if not waiting:
                return
            if time.monotonic() > until:
                raise RefusedError(
                    f"{waiting} of its calls still wait for the device after {seconds:g} s"
                )
            if self._stopped.wait(_PAUSE_SECONDS / 10):
                raise RefusedError("the run is ending")

    def _drive(self, wish: suspension.Wish, lock_seconds: float) -> None:
        """Bring every process to the wished state."""
        states = self._observe()
        until = time.monotonic() + _SETTLE_SECONDS
        while not self._stopped.is_set():
            step = suspension.next_step(wish, states)
            if step is None or step.action is suspension.Action.CHECKPOINT:
                known = set(self._targets)
                self._find_targets()
                if set(self._targets) != known:
                    states = self._observe()
                    continue
            if step is None:
                failed = [pid for pid, x in states.items() if x is suspension.ProcessState.FAILED]
                if failed:
                    raise RefusedError(f"process {failed[0]}: the driver says that it has failed")
                return
            result = self._act(step, lock_seconds)
            outcome = suspension.judge(step.action, result)
            if outcome is suspension.Outcome.DONE:
                states[step.pid] = suspension.AFTER[step.action]
                until = time.monotonic() + _SETTLE_SECONDS
                continue
            if not self._targets[step.pid].is_alive:
                outcome = suspension.Outcome.AGAIN
            if outcome is suspension.Outcome.LOST:
                why = suspension.explain(step.action, result)
                raise LostError(
                    f"process {step.pid} could not be restored ({why}), so the run's processes "
                    "are killed"
                )
            why = suspension.explain(step.action, result)
            if outcome is suspension.Outcome.REFUSED or time.monotonic() > until:
                raise RefusedError(f"process {step.pid}: {why}")
            self._stopped.wait(_PAUSE_SECONDS)
            self._find_targets()
            states = self._observe()
        raise RefusedError("the run is ending")

    def _act(self, step: suspension.Step, lock_seconds: float) -> int:
        seconds = {
            suspension.Action.LOCK: lock_seconds + _CALL_SECONDS,
            suspension.Action.UNLOCK: _CALL_SECONDS,
        }.get(step.action, self._copy_seconds)
        try:
            return self._calls.act(step, max(1, int(lock_seconds * 1000)), seconds)
        except checkpoint_calls.HangingError as exc:
            raise _hanging(step.pid, exc) from exc

    def _observe(self) -> dict[int, suspension.ProcessState]:
        """Return the states of the processes; one that is beginning counts as running."""
        found = {}
        for pid in self._targets:
            try:
                state = self._calls.state(pid, self._copy_seconds)
            except checkpoint_calls.HangingError as exc:
                raise _hanging(pid, exc) from exc
            found[pid] = suspension.ProcessState.RUNNING if state is None else state
        return found


def _hanging(pid: int, exc: errors.PyVgpuError) -> RefusedError:
    return RefusedError(f"process {pid}: {exc}; if it is stopped, `kill -CONT {pid}` continues it")


def _kept(*, keep: bool) -> str:
    return "kept" if keep else "released"


def find_processes(usage: int) -> tuple[list[Target], list[int]]:
    """Return the processes that own a slot of the open *usage* file, and pids that are not found.

    A slot has the pid of its process in the process's own pid namespace.
    """
    slots = region.read_slots(usage, 1)
    kin = process_identity.Kin(usage)
    found: dict[int, int] = {}  # pid by slot
    for slot in slots:
        if kin.slot_of(slot.pid, slots) == slot.slot:
            found[slot.slot] = slot.pid
    if len(found) < len(slots):
        for folder in _PROC.iterdir():
            if folder.name.isdigit():
                number = kin.slot_of(int(folder.name), slots)
                if number is not None:
                    found.setdefault(number, int(folder.name))
    targets = [Target(pid, process_identity.began(pid), slot) for slot, pid in found.items()]
    return targets, [slot.pid for slot in slots if slot.slot not in found]


def find_obstacle(folder: Path) -> str | None:
    """Return why the process with this folder in /proc cannot be suspended; None: it can be tried.

    A process that is stopped or frozen would make the driver's calls hang.
    """
    try:
        maps = (folder / "maps").read_bytes()
    except OSError:
        return None  # it has ended
    if checkpoint_calls.is_stopped(folder):
        return f"it is stopped; `kill -CONT {folder.name}` continues it"
    if is_frozen(folder):
        return "its cgroup is frozen"
    if maps.count(_UVM) > 1:
        return "it has managed memory, which the driver cannot move"
    return None


def is_frozen(folder: Path) -> bool:
    """Return whether the cgroup of the process with this folder in /proc is frozen."""
    cgroup = cgroups.of_process(int(folder.name))
    try:
        return cgroup is not None and "frozen 1" in (cgroup / "cgroup.events").read_text()
    except OSError:
        return False


def kill_suspended(folder: Path) -> None:
    """Kill the processes of a dead supervisor's run in *folder* if nothing could resume them."""
    quota = os.open(folder / names.QUOTA_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not region.read_limits(quota).suspension.gated:
            return
        usage = os.open(folder / names.USAGE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for target in find_processes(usage)[0]:
                target.kill()
        finally:
            os.close(usage)
    finally:
        os.close(quota)


def parse_order(found: Mapping[str, Any]) -> SuspendOrder:
    """Return the order of a client; DataError if it is not valid."""
    try:
        order = SuspendOrder(
            suspension.Wish(found["suspension"]),
            bool(found.get("keep", False)),
            None if found.get("host_memory") is None else int(found["host_memory"]),
            float(found.get("lock_seconds", LOCK_SECONDS)),
        )
        if not 0 < order.lock_seconds <= 3600:
            raise ValueError("lock_seconds")
        return order
    except (ValueError, KeyError, TypeError) as exc:
        raise errors.DataError(f"not an order to suspend: {exc}") from exc
