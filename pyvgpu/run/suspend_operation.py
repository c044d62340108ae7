"""Suspend and resume the processes of one tenant, a run or a container: the shell of suspension.

The tenant's quota says first what is about to happen (region.Suspension). An operation that was
interrupted anywhere can be repeated, or be taken back: it asks the driver for the states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyvgpu import errors, names, quantity, quota, region
from pyvgpu.machine import cgroups, host_memory, process_identity
from pyvgpu.run import checkpoint_calls, suspension

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from pyvgpu.device import Device

ROOM_BYTES = 256 << 20  # of a GPU, left free by a restore beyond what it needs
LOCK_SECONDS = 10.0
_CALL_SECONDS = 10.0
_COPY_SECONDS = 60.0
_COPY_RATE = 200_000_000  # bytes per second, slower than any link
_SETTLE_SECONDS = 10.0  # for processes that are beginning or ending
_PAUSE_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_PROC = Path("/proc")
_UVM = b"/dev/nvidia-uvm"
_NCCL = "nccl"  # in the names of its threads
_NCCL_BREAKS = ("595",)  # driver branches that end a process with NCCL instead of moving it
_MODULE = Path("/proc/driver/nvidia/version")
_OPEN_MODULE = "Open Kernel Module"
_MODULE_HANGS = ("595.71.05",)

RUNNING = region.Suspension()
_GATED = region.Suspension(gated=True)


class SuspensionRefusedError(errors.UnavailableError):
    """A process cannot be suspended; it goes on."""


class NoRoomError(errors.UnavailableError):
    """Others have reserved the room of a suspended tenant, which stays suspended."""


class LostError(errors.UnavailableError):
    """A process can never be restored."""


@dataclasses.dataclass(frozen=True, slots=True)
class SuspendOrder:
    """What to do."""

    desired: suspension.DesiredState
    keep: bool = False  # the reservation
    host_memory: int | None = None  # most host memory that may be used, bytes
    lock_seconds: float = LOCK_SECONDS  # for calls and work in progress
    is_manual: bool = True  # of a command, not of the policy of oversubscription


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """One process of the tenant."""

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


class SuspendedTenant(Protocol):
    """The run or the container whose processes are suspended."""

    @property
    def folder(self) -> Path:
        """The folder of its region."""

    @property
    def devices(self) -> Sequence[Device]:
        """Its devices, in the order of its quota."""

    @property
    def must_show_cgroups(self) -> bool:
        """Whether its processes are in cgroups whose memory limits must be known."""

    def read(self) -> region.Suspension:
        """Return what its quota says."""

    def mark(self, suspension_now: region.Suspension) -> None:
        """Write it into its quota."""

    def readmit(self) -> None:
        """Reserve its shares again, if they were released; UnavailableError without room."""


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """Memory of one process: the sums of its devices, in their order."""

    sizes: tuple[int, ...]  # bytes

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return sum(self.sizes)


@dataclasses.dataclass(frozen=True, slots=True)
class MovedMemory:
    """The memory that an operation has moved, in bytes by device of the tenant."""

    to_host: tuple[int, ...]
    to_device: tuple[int, ...]

    def plus(self, other: MovedMemory) -> MovedMemory:
        """Return the sums of both."""
        return MovedMemory(
            tuple(map(operator.add, self.to_host, other.to_host)),
            tuple(map(operator.add, self.to_device, other.to_device)),
        )


class Operation:
    """One suspension or resumption; *moved* is what it has moved so far."""

    def __init__(
        self,
        tenant: SuspendedTenant,
        calls: checkpoint_calls.Calls,
        stopped: threading.Event,
        saved: dict[int, Need],
    ) -> None:
        """Keep in *saved* what each process gave up, by pid, from one operation to the next."""
        self._tenant = tenant
        self._calls = calls
        self._stopped = stopped
        self._saved = saved
        self._targets: dict[int, Target] = {}
        self._needs: dict[int, Need] = {}  # as last measured
        self._copy_seconds = _COPY_SECONDS
        self._moves_all = False  # from the device: no child may keep any there
        self.moved = MovedMemory((0,) * len(tenant.devices), (0,) * len(tenant.devices))

    def suspend(self, order: SuspendOrder) -> str:
        """Suspend all processes, or none; return a line for the user."""
        before = self._tenant.read()
        if before.suspended:
            self._find_targets()  # a resumption may have been interrupted
            self._drive(suspension.DesiredState.SUSPENDED, order.lock_seconds)
            if before.kept == order.keep:
                return "is suspended already"
            kept = dataclasses.replace(before, kept=order.keep)
            if order.keep:
                self._tenant.readmit()
            else:
                self._mark(kept)
            return f"is suspended already; its reservation is {_kept(keep=order.keep)} now"
        needs = self.check(order.host_memory)
        self._mark(_GATED)
        self._wait_for_waits(order.lock_seconds)
        self._drive(suspension.DesiredState.SUSPENDED, order.lock_seconds)
        self._saved.clear()
        self._saved.update(needs)
        self._mark(region.Suspension(True, True, order.keep))
        size = quantity.format_size(sum(need.total for need in needs.values()))
        return (
            f"suspended: {size} moved to host memory, its reservation is {_kept(keep=order.keep)}"
        )

    def check(self, most: int | None = None) -> dict[int, Need]:
        """Return the memory to move by pid; UnavailableError if it cannot be moved.

        *most* is the host memory that may be used, in bytes. Nothing is changed.
        """
        self._calls.check_offered()
        self._moves_all = True
        self._find_targets()
        self._check_targets()
        needs = self._measure()
        limits = host_memory.find(tuple(needs), strict=self._tenant.must_show_cgroups)
        margin = host_memory.MARGIN_BYTES
        wanted = {pid: need.total + margin for pid, need in needs.items()}
        host_memory.check(wanted, limits, most)
        return needs

    def resume(self) -> str:
        """Resume all processes; UnavailableError without room, and they stay suspended."""
        before = self._tenant.read()
        self._moves_all = False
        if not before.gated:
            return "is running already"
        self._calls.check_offered()
        self._find_targets()
        for pid in self._targets:
            if checkpoint_calls.is_stopped(_PROC / str(pid)):
                raise SuspensionRefusedError(
                    f"process {pid}: it is stopped; `kill -CONT {pid}` continues it"
                )
        if before.suspended:
            try:
                self._tenant.readmit()
            except errors.UnavailableError as exc:
                raise NoRoomError(str(exc)) from exc
            try:
                self._check_room()
            except errors.PyVgpuError:
                self._mark(before)
                raise
        self._drive(suspension.DesiredState.RUNNING, _CALL_SECONDS)
        self._mark(RUNNING)
        self._saved.clear()
        return "resumed"

    def kill(self) -> None:
        """Kill all processes: none can go on without one that is lost."""
        for target in self._targets.values():
            target.kill()

    def recover(self) -> None:
        """Let a tenant that could not be suspended go on, however long it is stopped.

        LostError if a process can never be restored.
        """
        self._moves_all = False
        while not self._stopped.is_set():
            try:
                found = self._tenant.read()
                if not found.gated or found.suspended:
                    return
                self._find_targets()
                self._drive(suspension.DesiredState.RUNNING, _CALL_SECONDS)
                self._mark(RUNNING)
            except LostError:
                raise
            except (errors.PyVgpuError, OSError):
                self._stopped.wait(_RETRY_SECONDS)
            else:
                return

    def _mark(self, suspension_now: region.Suspension) -> None:
        """Write the flags of the quota, whose descriptor is closed when a run ends."""
        if self._stopped.is_set():
            raise _ending()
        self._tenant.mark(suspension_now)

    # --- the tenant's processes ---------------------------------------------------------------

    @contextlib.contextmanager
    def _usage(self) -> Any:
        path = self._tenant.folder / names.USAGE_FILE
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield file
        finally:
            os.close(file)

    def _find_targets(self) -> None:
        """Find the processes of all slots; a process that has called exec has none any more.

        RefusedError if one has ended and its slot is kept, and with it memory on the device.
        """
        until = time.monotonic() + _SETTLE_SECONDS
        while True:
            with self._usage() as usage:
                found, missing, kept = find_processes(usage)
            if not missing and not (kept and self._moves_all):
                break
            if time.monotonic() > until:
                raise SuspensionRefusedError(
                    f"process {(*missing, *kept)[0]} has ended, and a child that it forked keeps "
                    "its memory"
                )
            self._stopped.wait(_PAUSE_SECONDS)
        self._targets = {target.pid: target for target in found if target.is_alive}

    def _check_targets(self) -> None:
        with self._usage() as usage:
            slots = region.read_slots(usage, len(self._tenant.devices))
            exporters = region.read_exporters(usage)
        if any(any(slot.opened) for slot in slots):
            raise SuspensionRefusedError(
                "its processes share device memory with each other, which cannot be moved"
            )
        unmovable = frozenset(slot.slot for slot in slots if slot.unmovable)
        for pid, target in self._targets.items():
            if target.slot in unmovable:
                raise SuspensionRefusedError(
                    f"process {pid}: it has multicast objects, fabric memory or memory of another "
                    "container, which the driver cannot move; NCCL has none with "
                    "NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0"
                )
            if target.slot in exporters:
                raise SuspensionRefusedError(
                    f"process {pid}: it has exported device memory to other processes, which the "
                    "driver cannot move"
                )
        if self._is_under_mps():
            raise SuspensionRefusedError(
                "its processes use MPS, and the driver cannot suspend clients of MPS"
            )
        for device in self._tenant.devices:
            if device.instance is not None:
                raise SuspensionRefusedError(
                    f"{device.label} is a MIG device, whose memory the driver cannot move"
                )
        reason = None if self._calls.is_simulated else find_fault_of_module(_MODULE)
        if reason is not None:
            raise SuspensionRefusedError(reason)
        for pid in self._targets:
            reason = find_obstacle(_PROC / str(pid), self._calls.release)
            if reason is not None:
                raise SuspensionRefusedError(f"process {pid}: {reason}")

    def _is_under_mps(self) -> bool:
        path = self._tenant.folder / names.QUOTA_FILE
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            limits = region.read_limits(file).devices
        finally:
            os.close(file)
        return any(limit.isolation is quota.Isolation.MPS for limit in limits)

    def _measure(self) -> dict[int, Need]:
        """Return what each process holds on the devices, by NVML and the ledger.

        NVML's pids may be of another pid namespace, and the ledger lacks what no call asked for.
        While a process is suspended, NVML does not list it, and the ledger stays as it is.
        """
        devices = self._tenant.devices
        seen = [
            self._calls.memory(device.uuid, device.uncounted_bytes).by_pid for device in devices
        ]
        with self._usage() as usage:
            charged = {slot.slot: slot.charged for slot in region.read_slots(usage, len(devices))}
        nothing = (0,) * len(devices)
        needs = {
            pid: Need(
                tuple(
                    max(by_pid.get(pid, 0), size)
                    for by_pid, size in zip(seen, charged.get(target.slot, nothing), strict=True)
                )
            )
            for pid, target in self._targets.items()
        }
        self._needs = needs
        total = sum(need.total for need in needs.values())
        self._copy_seconds = _COPY_SECONDS + total / _COPY_RATE
        return needs

    def _check_room(self) -> None:
        """Raise UnavailableError unless a restore has room; without, it fails for good."""
        measured = self._measure()
        needs = [
            Need(tuple(map(max, measured[pid].sizes, self._saved.get(pid, measured[pid]).sizes)))
            for pid, state in self._observe().items()
            if state is suspension.ProcessState.CHECKPOINTED
        ]
        for index, device in enumerate(self._tenant.devices):
            needed = sum(need.sizes[index] for need in needs)
            wanted = needed + (0 if self._calls.is_simulated else ROOM_BYTES)
            memory = self._calls.memory(device.uuid, 0)
            free = memory.free
            if needed and memory.is_mig:
                raise errors.UnavailableError(
                    f"{device.label} is in MIG mode by now, where the driver cannot restore its "
                    "memory; `nvidia-smi -mig 0` ends that mode"
                )
            if needed and free < wanted:
                raise errors.UnavailableError(
                    f"it needs {quantity.format_size(wanted)} of {device.label}, and "
                    f"{quantity.format_size(free)} is free: processes without a quota hold the "
                    "rest"
                )

    # --- calls --------------------------------------------------------------------------------

    def _wait_for_waits(self, seconds: float) -> None:
        """Wait until no thread is in a call that must not be in a locked driver."""
        until = time.monotonic() + seconds
        while True:
            with self._usage() as usage:
                waiting = sum(
                    slot.waiting for slot in region.read_slots(usage, len(self._tenant.devices))
                )
            if not waiting:
                return
            if time.monotonic() > until:
                raise SuspensionRefusedError(
                    f"{waiting} of its calls still wait for the device after {seconds:g} s"
                )
            if self._stopped.wait(_PAUSE_SECONDS / 10):
                raise _ending()

    def _drive(self, desired: suspension.DesiredState, lock_seconds: float) -> None:
        """Bring every process to the desired state."""
        states = self._observe()
        until = time.monotonic() + _SETTLE_SECONDS
        while not self._stopped.is_set():
            step = suspension.next_step(desired, states)
            if step is None or step.action is suspension.CheckpointCall.CHECKPOINT:
                known = set(self._targets)
                self._find_targets()
                if set(self._targets) != known:
                    states = self._observe()
                    continue
            if step is None:
                unmoved = suspension.find_unmoved(states)
                if unmoved is None:
                    return
                pid, why = unmoved
                has_failed = states[pid] is suspension.ProcessState.FAILED
                if has_failed or time.monotonic() > until:
                    raise SuspensionRefusedError(f"process {pid}: {why}")
                self._stopped.wait(_PAUSE_SECONDS)
                states = self._observe()
                continue
            result = self._act(step, lock_seconds)
            outcome = suspension.evaluate(step.action, result)
            if outcome is suspension.CallOutcome.DONE:
                states[step.pid] = suspension.AFTER[step.action]
                self._count(step)
                until = time.monotonic() + _SETTLE_SECONDS
                continue
            target = self._targets.get(step.pid)
            if target is None or not target.is_alive:
                outcome = suspension.CallOutcome.AGAIN
            if outcome is suspension.CallOutcome.LOST:
                why = suspension.explain(step.action, result)
                raise LostError(
                    f"process {step.pid} could not be restored ({why}), so the processes beside "
                    "it are killed, too"
                )
            why = suspension.explain(step.action, result)
            if outcome is suspension.CallOutcome.REFUSED or time.monotonic() > until:
                raise SuspensionRefusedError(f"process {step.pid}: {why}")
            self._stopped.wait(_PAUSE_SECONDS)
            self._find_targets()
            states = self._observe()
        raise _ending()

    def _count(self, step: suspension.Step) -> None:
        """Add what a call has moved; of an operation of an earlier supervisor, the ledger's."""
        if step.action not in (
            suspension.CheckpointCall.CHECKPOINT,
            suspension.CheckpointCall.RESTORE,
        ):
            return
        if not self._needs:
            with contextlib.suppress(errors.PyVgpuError, OSError):
                self._measure()
        nothing = Need((0,) * len(self._tenant.devices))
        measured = self._needs.get(step.pid, nothing)
        if step.action is suspension.CheckpointCall.CHECKPOINT:
            more = MovedMemory(measured.sizes, nothing.sizes)
        else:
            more = MovedMemory(nothing.sizes, self._saved.get(step.pid, measured).sizes)
        self.moved = self.moved.plus(more)

    def _act(self, step: suspension.Step, lock_seconds: float) -> int:
        seconds = {
            suspension.CheckpointCall.LOCK: lock_seconds + _CALL_SECONDS,
            suspension.CheckpointCall.UNLOCK: _CALL_SECONDS,
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


def _ending() -> SuspensionRefusedError:
    return SuspensionRefusedError("the program that suspends it is ending")


def _hanging(pid: int, exc: errors.PyVgpuError) -> SuspensionRefusedError:
    return SuspensionRefusedError(
        f"process {pid}: {exc}; if it is stopped, `kill -CONT {pid}` continues it"
    )


def _kept(*, keep: bool) -> str:
    return "kept" if keep else "released"


def find_processes(usage: int) -> tuple[list[Target], list[int], list[int]]:
    """Return the processes that own a slot of the open *usage* file, and pids without a process.

    First those that are not found, perhaps since they just begin or end; then those that have
    ended, or called exec, and whose slots their forked children keep. A slot has the pid of its
    process in the process's own pid namespace.
    """
    slots = region.read_slots(usage, 1)
    processes = process_identity.SlotProcesses(usage)
    found: dict[int, int] = {}  # pid by slot
    for slot in slots:
        if processes.slot_of(slot.pid, slots) == slot.slot:
            found[slot.slot] = slot.pid
    if len(found) < len(slots):
        for folder in _PROC.iterdir():
            if folder.name.isdigit():
                number = processes.slot_of(int(folder.name), slots)
                if number is not None:
                    found.setdefault(number, int(folder.name))
    targets = [Target(pid, process_identity.began(pid), slot) for slot, pid in found.items()]
    lost = [slot for slot in slots if slot.slot not in found]
    kept = [slot for slot in lost if processes.has_ended(slot)]
    return (
        targets,
        [slot.pid for slot in lost if slot not in kept],
        [slot.pid for slot in kept],
    )


def find_obstacle(folder: Path, release: str = "") -> str | None:
    """Return why the process with this folder in /proc cannot be suspended; None: it can be tried.

    A process that is stopped or frozen would make the driver's calls hang. The driver's *release*
    says what else it would not survive.
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
    branch = release.partition(".")[0]
    if branch in _NCCL_BREAKS and _has_thread(folder, _NCCL):
        return f"it uses NCCL, which driver release {branch} cannot suspend; 580 can"
    return None


def find_fault_of_module(module: Path) -> str | None:
    """Return why no process must be suspended; None: the kernel module has no known fault.

    *module*: the file with its version, which need not exist.
    """
    try:
        text = module.read_text(errors="replace")
    except OSError:
        return None
    for release in _MODULE_HANGS:
        if _OPEN_MODULE in text and f" {release} " in text:
            return (
                f"the open kernel module {release} hangs the machine when a process that was "
                "resumed is killed; the closed module, or another release, does not"
            )
    return None


def _has_thread(folder: Path, part: str) -> bool:
    for thread in folder.glob("task/*/comm"):
        with contextlib.suppress(OSError):
            if part in thread.read_text():
                return True
    return False


def is_frozen(folder: Path) -> bool:
    """Return whether the cgroup of the process with this folder in /proc is frozen."""
    cgroup = cgroups.of_process(int(folder.name))
    try:
        return cgroup is not None and "frozen 1" in (cgroup / "cgroup.events").read_text()
    except OSError:
        return False
