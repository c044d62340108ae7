"""Runs the demonstration of oversubscription: performs its steps and records observations."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from pyvgpu.demo import live_display, workspace
from pyvgpu.demo.observations import MIB, EventKind, Role, TenantEvent, gib
from pyvgpu.demo.oversubscribe import notebook_scenario
from pyvgpu.demo.oversubscribe.notebook_scenario import (
    CELL_MS,
    NotebookObservations,
    NotebookPlan,
    NotebookSample,
    NotebookStep,
    NotebookView,
)
from pyvgpu.demo.sampler import DeviceSampler
from pyvgpu.demo.tenant_runs import TenantRuns
from pyvgpu.machine import reservations
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyvgpu.machine.holders import LiveReservation

LISTEN_SECONDS = 0.02
SAMPLE_SECONDS = 0.1  # a sample takes the lock of the reservations
_STARTS = {
    NotebookStep.START_FIRST: Role.FIRST,
    NotebookStep.START_SECOND: Role.SECOND,
    NotebookStep.START_THIRD: Role.THIRD,
    NotebookStep.START_LATE: Role.LATE,
}
_WORK = {
    NotebookStep.WORK_FIRST: Role.FIRST,
    NotebookStep.WORK_SECOND: Role.SECOND,
    NotebookStep.WORK_THIRD: Role.THIRD,
    NotebookStep.WORK_AGAIN: Role.FIRST,
}
_SENTENCES = {
    EventKind.START: "has room: runs with {quota}",
    EventKind.HELD: "fills {size} of its memory, and rests",
    EventKind.SUSPENDED: "is suspended: {size} of device memory moved to host memory",
    EventKind.RESUMED: "is resumed",
    EventKind.FAILED: "{text}",
    EventKind.START_REFUSED: "{text}",
}
_SHOWN = 2  # cells of a run; from then on it goes on working


class NotebookDemo:
    """One demonstration, which runs once."""

    def __init__(
        self,
        plan: NotebookPlan,
        runs: TenantRuns,
        sampler: DeviceSampler,
        display: live_display.Display,
    ) -> None:
        self._plan = plan
        self._runs = runs
        self._sampler = sampler
        self._display = display
        self._registries = reservations.Registries()
        self._events: list[TenantEvent] = []
        self._samples: list[NotebookSample] = []
        self._states: dict[Role, str] = {}

    def run(self) -> NotebookObservations:
        """Run it; return the observations."""
        done, sampled = 0, 0.0
        while True:
            read = self._runs.read_events(LISTEN_SECONDS)
            if read or time.monotonic() >= sampled + SAMPLE_SECONDS:
                sampled = time.monotonic()
                self._sample()  # before a run's report: it was resumed before
            self._record(read)
            seen = self._observed()
            for role in notebook_scenario.idle_workers(seen):
                self._ask(role, CELL_MS)
            step = notebook_scenario.due(seen, done, self._runs.seconds)
            if step is NotebookStep.END:
                break
            if step is not None:
                self._perform(step)
                done += 1
        self._record(self._runs.end())
        self._sample()
        return dataclasses.replace(self._observed(), left=self._leftovers())

    def _observed(self) -> NotebookObservations:
        return NotebookObservations(
            self._plan, tuple(self._events), tuple(self._samples), tuple(self._runs.remarks)
        )

    def _perform(self, step: NotebookStep) -> None:
        if step in _WORK:
            self._ask(_WORK[step], 0)
            return
        role = _STARTS[step]
        if role is Role.LATE:
            self._record([TenantEvent(self._runs.seconds, role, EventKind.ASKED)])
        self._runs.start(role)

    def _ask(self, role: Role, milliseconds: int) -> None:
        self._record([TenantEvent(self._runs.seconds, role, EventKind.ASKED)])
        self._runs.send_line(role, str(milliseconds))

    def _record(self, events: Iterable[TenantEvent]) -> None:
        for event in events:
            self._events.append(event)
            sentence = sentence_of(event, self._observed())
            if event.kind is EventKind.START_REFUSED:
                self._display.show_table()
            if sentence:
                self._display.add_event(event, sentence)

    def _sample(self) -> None:
        with self._registries.frozen() as live:
            seconds, used = self._runs.seconds, self._sampler.used()
            ours = {self._plan.name(role): role for role in notebook_scenario.RUNS}
            views = tuple(
                _view(ours[reservation.holder.name], reservation)
                for reservation in live
                if reservation.holder.name in ours
            )
        sample = NotebookSample(seconds, used, views)
        self._samples.append(sample)
        for view in views:
            before = self._states.get(view.role, view.state)
            if view.state == "suspended" != before:
                moved = TenantEvent(seconds, view.role, EventKind.SUSPENDED, size=view.host)
                self._record([moved])
            elif before == "suspended" != view.state:
                self._record([TenantEvent(seconds, view.role, EventKind.RESUMED)])
            self._states[view.role] = view.state
        if views:  # the table stays when all have ended
            self._display.update_table(lambda: table(self._plan, sample))

    def _leftovers(self) -> tuple[str, ...]:
        """Describe runs, reservations and device memory that remain after the end."""
        left = [f"the run of {role} did not end" for role in self._runs.alive]
        last = self._samples[-1]
        left += [f"the reservation of {view.role} still exists" for view in last.views]
        return (*left, f"{last.used} bytes of the device are in use") if last.used else tuple(left)


def _view(role: Role, reservation: LiveReservation) -> NotebookView:
    record, suspended = reservation.record, reservation.limits.suspension.suspended
    state = "suspended" if suspended else "running"
    if record is not None and record.is_new:
        state = "waiting"
    charged = sum(reservation.held or ())
    return NotebookView(
        role,
        state,
        sum(reservation.reserved),
        0 if suspended else charged,
        charged if suspended else 0,
        () if record is None else record.moves,
    )


def run_demo(
    spec: str, make_display: Callable[[NotebookPlan], live_display.Display]
) -> NotebookObservations:
    """Run the demonstration on a new simulated machine, described by *spec*.

    Raises UnavailableError if no folder has room for the simulated device.
    """
    with workspace.private_folder() as (folder, working):
        machine = simulator.open_machine(spec, folder)
        device = machine.devices[0]
        plan = NotebookPlan(
            device=device.name,
            memory=device.memory_bytes,
            working=min(24 * MIB, working // 4 // MIB * MIB),
            suffix=secrets.token_hex(2),
        )
        environment = {**os.environ, simulator.BASE_VARIABLE: str(folder)}
        display = make_display(plan)
        try:
            with (
                DeviceSampler(machine) as sampler,
                TenantRuns(plan, device.uuid, spec, environment) as runs,
            ):
                return NotebookDemo(plan, runs, sampler, display).run()
        finally:
            display.close()


def table(plan: notebook_scenario.NotebookPlan, sample: NotebookSample) -> Table:
    """Return the state and the memory of each run, and the sums."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run")
    shown.add_column("state", min_width=9)
    for heading in ("vmemory", "reserved", "on device", "in host memory"):
        shown.add_column(heading, justify="right", min_width=9)
    shown.add_column("moves", justify="right")
    for role in notebook_scenario.RUNS:
        view = sample.of(role)
        if view is None:
            continue
        shown.add_row(
            Text(role, style=live_display.COLOURS[role]),
            view.state,
            *(gib(size) for size in (plan.quota, view.reserved, view.held, view.host)),
            str(len(view.moves)),
        )
    shown.add_section()
    views = sample.views
    shown.add_row(
        "device",
        gib(plan.memory),
        *(gib(size) for size in (len(views) * plan.quota, sample.reserved, sample.used)),
        gib(sum(view.host for view in views)),
        str(sum(len(view.moves) for view in views)),
    )
    return shown


def sentence_of(event: TenantEvent, seen: NotebookObservations) -> str | None:
    """Return the sentence about *event*, None if it is not worth a line."""
    if event.kind is EventKind.ASKED and event.role is Role.LATE:
        return f"asks for {gib(seen.plan.quota)} while the first and the third work"
    if event.kind in (EventKind.ASKED, EventKind.CELL) and event.number == 0:
        number = len([x for x in seen.of(event.role, event.kind) if x.seconds <= event.seconds])
        if number > _SHOWN:
            return None
        if event.kind is EventKind.ASKED:
            return "is asked to work"
        return f"has worked: {gib(event.size)} verified, every byte right"
    if event.kind is EventKind.CELL:
        return f"{event.number} bytes were wrong"
    if event.kind is EventKind.ENDED and event.number:
        said = next((x for role, x in reversed(seen.remarks) if role is event.role), "")
        return f"its run ended with exit code {event.number}" + (f": {said}" if said else "")
    said = _SENTENCES.get(event.kind, "")
    return said.format(quota=gib(seen.plan.quota), size=gib(event.size), text=event.text) or None
