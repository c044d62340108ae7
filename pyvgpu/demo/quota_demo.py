"""Runs the demonstration of quotas: performs its steps and records observations."""

from __future__ import annotations

import dataclasses
import os
import secrets
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.demo import demo_steps, live_display, workspace
from pyvgpu.demo.observations import (
    TENANTS,
    DemoPlan,
    DemoSample,
    EventKind,
    Observations,
    Role,
    TenantEvent,
)
from pyvgpu.demo.sampler import DeviceSampler
from pyvgpu.demo.tenant_runs import QuotaScenario, TenantRuns
from pyvgpu.machine import reservations
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_SECONDS = 0.02  # between two samples
_TABLE_SAMPLES = 64  # the table shows shares over these: more than the last second


class QuotaDemo:
    """One demonstration, which runs once."""

    def __init__(
        self,
        plan: DemoPlan,
        runs: TenantRuns,
        sampler: DeviceSampler,
        display: live_display.Display,
    ) -> None:
        self._plan = plan
        self._runs = runs
        self._sampler = sampler
        self._display = display
        self._events: list[TenantEvent] = []
        self._samples: list[DemoSample] = []

    def run(self) -> Observations:
        """Run until all tenants have ended, and return the observations."""
        done: frozenset[demo_steps.DemoStep] = frozenset()
        for role in TENANTS:
            self._runs.start(role)
        while demo_steps.DemoStep.END not in done:
            self._record(self._runs.read_events(SAMPLE_SECONDS))
            self._sample()
            step = demo_steps.due(self._observed(), done, self._runs.seconds)
            if step:
                self._perform(step)
                done |= {step}
        self._record(self._runs.end())
        self._sample()
        return dataclasses.replace(self._observed(), left=self._leftovers())

    def _observed(self) -> Observations:
        return Observations(
            self._plan, tuple(self._events), tuple(self._samples), tuple(self._runs.remarks)
        )

    def _perform(self, step: demo_steps.DemoStep) -> None:
        if step is demo_steps.DemoStep.KILL:
            held = self._observed().first(Role.DOOMED, EventKind.HELD)
            if held:
                self._record([self._runs.kill(held)])
        elif step is demo_steps.DemoStep.RESTART:
            self._runs.send_line(Role.DOOMED)
        elif step is demo_steps.DemoStep.START_LATE:
            self._runs.start(Role.LATE)

    def _record(self, events: list[TenantEvent]) -> None:
        for event in events:
            if event.kind is EventKind.START:
                self._sampler.follow(event.role, self._plan.name(event.role))
            self._events.append(event)
            sentence = live_display.sentence(event, self._observed())
            if event.kind is EventKind.KILLED:
                self._display.show_table()
            if sentence:
                self._display.add_event(event, sentence)

    def _sample(self) -> None:
        sample = self._sampler.sample(self._runs.seconds, self._runs.pids)
        self._samples.append(sample)
        recent = tuple(self._samples[-_TABLE_SAMPLES:])
        self._display.update_table(lambda: live_display.table(self._plan, recent))

    def _leftovers(self) -> tuple[str, ...]:
        """Describe runs, reservations and device memory that remain after the end."""
        left = [f"the run of {role} did not end" for role in self._runs.alive]
        ours = {self._plan.name(role) for role in Role}
        named = [live.holder.name for live in reservations.Registries().live()]
        left += [f"the reservation of {name} still exists" for name in named if name in ours]
        used = self._sampler.used()
        return (*left, f"{used} bytes of the device are in use") if used else tuple(left)


def run_demo(
    seconds: int, spec: str, make_display: Callable[[DemoPlan], live_display.Display]
) -> Observations:
    """Run the demonstration for *seconds* on a new simulated machine, described by *spec*.

    Raises UsageError if its device has too little memory, and UnavailableError if no folder has
    room for the simulated device.
    """
    with workspace.private_folder() as (folder, working):
        machine = simulator.open_machine(spec, folder)
        device = machine.devices[0]
        plan = DemoPlan(
            seconds=seconds,
            device=device.name,
            memory=device.memory_bytes,
            context=device.context_bytes,
            working=working,
            suffix=secrets.token_hex(2),
        )
        if plan.unreserved <= 0:
            raise errors.UsageError(
                f"--simulate {spec!r}: {device.name} is too small for six tenants; "
                "must have 14GiB, such as t4"
            )
        environment = {**os.environ, simulator.BASE_VARIABLE: str(folder)}
        display = make_display(plan)
        try:
            with (
                DeviceSampler(machine) as sampler,
                TenantRuns(QuotaScenario(plan), device.uuid, spec, environment) as runs,
            ):
                return QuotaDemo(plan, runs, sampler, display).run()
        finally:
            display.close()
