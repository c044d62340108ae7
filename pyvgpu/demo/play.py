"""Runs the demonstration: carries out the script and records observations."""

from __future__ import annotations

import dataclasses
import os
import secrets
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.demo import live_display, script, workspace
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
from pyvgpu.demo.tenant_runs import DemoStage, QuotaScene
from pyvgpu.machine import reservations
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_SECONDS = 0.02  # between two samples
_KEPT = 64  # samples, for the shares of the last second


class Play:
    """One demonstration."""

    def __init__(
        self, plan: DemoPlan, stage: DemoStage, meter: DeviceSampler, screen: live_display.Screen
    ) -> None:
        self._plan = plan
        self._stage = stage
        self._meter = meter
        self._screen = screen
        self._events: list[TenantEvent] = []
        self._samples: list[DemoSample] = []

    def run(self) -> Observations:
        """Run it; return the observations."""
        done: frozenset[script.StageStep] = frozenset()
        for role in TENANTS:
            self._stage.start(role)
        while script.StageStep.END not in done:
            self._note(self._stage.read_events(SAMPLE_SECONDS))
            self._sample()
            step = script.due(self._seen(), done, self._stage.seconds)
            if step:
                self._take(step)
                done |= {step}
        self._note(self._stage.end())
        self._sample()
        return dataclasses.replace(self._seen(), left=self._left())

    def _seen(self) -> Observations:
        return Observations(
            self._plan, tuple(self._events), tuple(self._samples), tuple(self._stage.remarks)
        )

    def _take(self, step: script.StageStep) -> None:
        if step is script.StageStep.KILL:
            held = self._seen().first(Role.DOOMED, EventKind.HELD)
            if held:
                self._note([self._stage.kill(held)])
        elif step is script.StageStep.GO:
            self._stage.go(Role.DOOMED)
        elif step is script.StageStep.ASK:
            self._stage.start(Role.LATE)

    def _note(self, events: list[TenantEvent]) -> None:
        for event in events:
            if event.kind is EventKind.START:
                self._meter.follow(event.role, self._plan.name(event.role))
            self._events.append(event)
            sentence = live_display.sentence(event, self._seen())
            if event.kind is EventKind.KILLED:
                self._screen.settled()
            if sentence:
                self._screen.happened(event, sentence)

    def _sample(self) -> None:
        sample = self._meter.sample(self._stage.seconds, self._stage.pids)
        self._samples.append(sample)
        recent = tuple(self._samples[-_KEPT:])
        self._screen.sampled(lambda: live_display.table(self._plan, recent))

    def _left(self) -> tuple[str, ...]:
        """Describe what is left over although all tenants have ended."""
        left = [f"the run of {role} did not end" for role in self._stage.alive]
        ours = {self._plan.name(role) for role in Role}
        named = [live.holder.name for live in reservations.Registries().live()]
        left += [f"the reservation of {name} still exists" for name in named if name in ours]
        used = self._meter.used()
        return (*left, f"{used} bytes of the device are in use") if used else tuple(left)


def play(
    seconds: int, spec: str, make_screen: Callable[[DemoPlan], live_display.Screen]
) -> Observations:
    """Run the demonstration on a new simulated machine *spec*."""
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
        screen = make_screen(plan)
        try:
            with (
                DeviceSampler(machine) as meter,
                DemoStage(QuotaScene(plan), device.uuid, spec, environment) as stage,
            ):
                return Play(plan, stage, meter, screen).run()
        finally:
            screen.close()
