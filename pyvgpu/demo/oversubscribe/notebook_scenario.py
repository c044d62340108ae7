"""The notebooks of the demonstration, their observations, and the next step. Pure.

Two of the three notebooks fit on the device together. Each step waits for a condition of the
observations, so a busy machine makes the demonstration longer, but does not change it.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import oversubscription, shim
from pyvgpu.demo.observations import MIB, EventKind, EventLog, Role, TenantEvent

if TYPE_CHECKING:
    from collections.abc import Callable

NOTEBOOKS = (Role.FIRST, Role.SECOND, Role.THIRD)
RUNS = (*NOTEBOOKS, Role.LATE)
WORKERS = (Role.FIRST, Role.THIRD)  # they work while the late run waits
RULES = oversubscription.MoveRules(idle_seconds=2, slice_seconds=60, moves_per_minute=20)
WAIT_SECONDS = 3  # of the late run
ROOM_SECONDS = 30  # of the others
PAUSE_SECONDS = 1.5  # work is noted once per second at most
TIMEOUT_SECONDS = 90
CELL_MS = 1000  # duration of a cell, in a notebook that runs one after another


@dataclasses.dataclass(frozen=True, slots=True)
class NotebookPlan:
    """The device and the runs."""

    device: str
    memory: int  # bytes of the device
    working: int = 24 * MIB  # bytes that each notebook fills and verifies
    suffix: str = ""  # makes the names of the runs unique

    @property
    def quota(self) -> int:
        """The bytes that each run reserves: two fifths of the device."""
        return self.memory * 2 // 5 // MIB * MIB

    def name(self, role: Role) -> str:
        """Return the name of the run of *role*."""
        return f"{role}-{self.suffix}" if self.suffix else str(role)

    def options(self, role: Role) -> list[str]:
        """Return the options of `pyvgpu run` for *role*, without the device."""
        wait = WAIT_SECONDS if role is Role.LATE else ROOM_SECONDS
        return [
            *("--name", self.name(role), "--vmemory", str(self.quota), "--oversubscribe"),
            *("--idle", str(RULES.idle_seconds), "--slice", str(RULES.slice_seconds)),
            *("--moves", str(RULES.moves_per_minute), "--wait", str(wait)),
        ]

    def program(self, _role: Role) -> list[str]:
        """Return the program of every run."""
        return [str(shim.tenant_program()), "notebook", str(self.working)]

    def start_refused(self, seconds: float, code: int, said: str) -> TenantEvent:
        """Return the event of the late run, which ended with *code* and *said* why."""
        return TenantEvent(
            seconds, Role.LATE, EventKind.START_REFUSED, code, self.quota, text=said
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NotebookView:
    """One run at one moment, by its reservation."""

    role: Role
    state: str  # running, suspended, or waiting for room
    reserved: int  # bytes
    held: int = 0  # bytes on the device
    host: int = 0  # bytes in host memory
    moves: tuple[float, ...] = ()  # when it was moved, by CLOCK_MONOTONIC


@dataclasses.dataclass(frozen=True, slots=True)
class NotebookSample:
    """One consistent sample of all runs."""

    seconds: float
    used: int  # bytes of the device, by the driver's own NVML
    views: tuple[NotebookView, ...]

    def of(self, role: Role) -> NotebookView | None:
        """Return the run of *role*; None: it has no reservation."""
        return next((view for view in self.views if view.role is role), None)

    @property
    def reserved(self) -> int:
        """The bytes that runs on the device reserve."""
        return sum(view.reserved for view in self.views)

    @property
    def admitted(self) -> int:
        """The number of runs that have started."""
        return sum(view.state != "waiting" for view in self.views)


@dataclasses.dataclass(frozen=True, slots=True)
class NotebookObservations(EventLog):
    """All observations."""

    plan: NotebookPlan
    events: tuple[TenantEvent, ...] = ()
    samples: tuple[NotebookSample, ...] = ()
    remarks: tuple[tuple[Role, str], ...] = ()  # standard error of the runs
    left: tuple[str, ...] = ()  # descriptions of left-overs after the end


class NotebookStep(enum.Enum):
    """The steps, in their order."""

    START_FIRST = enum.auto()
    START_SECOND = enum.auto()
    WORK_FIRST = enum.auto()
    WORK_SECOND = enum.auto()
    START_THIRD = enum.auto()  # no room for it: the first is idle for the longest time
    WORK_THIRD = enum.auto()
    WORK_AGAIN = enum.auto()  # the first wants to work, and is resumed
    START_LATE = enum.auto()  # while the first and the third work
    END = enum.auto()


STEPS = tuple(NotebookStep)


def due(seen: NotebookObservations, done: int, seconds: float) -> NotebookStep | None:
    """Return the next step if it is due, after *done* steps; None if it is not."""
    failed = any(seen.of(role, EventKind.ENDED, EventKind.FAILED) for role in NOTEBOOKS)
    if failed or seconds >= TIMEOUT_SECONDS:
        return NotebookStep.END
    step = STEPS[done]
    return step if _CONDITIONS[step](seen, seconds) else None


def idle_workers(seen: NotebookObservations) -> tuple[Role, ...]:
    """Return the workers that have completed their cells, while the late run still waits."""
    if len(seen.of(Role.FIRST, EventKind.CELL)) < 2 or seen.first(
        Role.LATE, EventKind.START_REFUSED
    ):
        return ()
    return tuple(
        role
        for role in WORKERS
        if len(seen.of(role, EventKind.CELL)) == len(seen.of(role, EventKind.ASKED))
    )


def _after(
    role: Role, kind: EventKind, pause: float
) -> Callable[[NotebookObservations, float], bool]:
    def is_due(seen: NotebookObservations, seconds: float) -> bool:
        event = seen.first(role, kind)
        return event is not None and seconds >= event.seconds + pause

    return is_due


def _both_work(seen: NotebookObservations, _seconds: float) -> bool:
    return all(len(seen.of(role, EventKind.CELL)) >= 3 for role in WORKERS)


def _is_decided(seen: NotebookObservations, _seconds: float) -> bool:
    return bool(seen.of(Role.LATE, EventKind.START_REFUSED, EventKind.START)) and not any(
        len(seen.of(role, EventKind.CELL)) < len(seen.of(role, EventKind.ASKED))
        for role in WORKERS
    )


_CONDITIONS: dict[NotebookStep, Callable[[NotebookObservations, float], bool]] = {
    NotebookStep.START_FIRST: lambda _seen, _seconds: True,
    NotebookStep.START_SECOND: _after(Role.FIRST, EventKind.HELD, 0),
    NotebookStep.WORK_FIRST: _after(Role.SECOND, EventKind.HELD, PAUSE_SECONDS),
    NotebookStep.WORK_SECOND: _after(Role.FIRST, EventKind.CELL, PAUSE_SECONDS),
    NotebookStep.START_THIRD: _after(
        Role.SECOND, EventKind.CELL, RULES.idle_seconds + PAUSE_SECONDS
    ),
    NotebookStep.WORK_THIRD: _after(Role.THIRD, EventKind.HELD, 0),
    NotebookStep.WORK_AGAIN: _after(Role.THIRD, EventKind.CELL, 0),
    NotebookStep.START_LATE: _both_work,
    NotebookStep.END: _is_decided,
}
