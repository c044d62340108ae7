"""Model of one device with oversubscribed tenants, in steps of a second or less.

It applies the policy (pyvgpu.oversubscription) to programs that alternate between work and rest.
Its time is counted, not waited for, so its figures do not depend on the machine.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import oversubscription
from pyvgpu.oversubscription import MovableTenant, MoveAction, TenantState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclasses.dataclass(slots=True)
class Program:
    """A program of a tenant; its work does not pass while it is not on the device."""

    tenant: MovableTenant
    work_seconds: float
    rest_seconds: float
    draw: Callable[[float], float] = float  # the length of a rest, from its mean
    left: float = 0.0  # of the present phase
    works: bool = False
    had: float = 0.0  # device time
    began: float = 0.0  # when its present work was wanted
    has_room: bool = True  # since then
    waits: list[float] = dataclasses.field(default_factory=list)  # seconds until it had room
    jobs: list[float] = dataclasses.field(default_factory=list)  # seconds until work was done


class Model:
    """A device, programs on it, and the policy."""

    def __init__(
        self,
        pool: oversubscription.Pool,
        programs: Sequence[Program],
        *,
        suspend_seconds: float = 2,
        resume_seconds: float = 2,
        step_seconds: float = 1,
        shared: bool = False,
    ) -> None:
        """*shared*: programs that work at the same time divide the device's time."""
        self.pool = pool
        self.programs = {program.tenant.key: program for program in programs}
        self.now = 0.0
        self.log: list[float] = []  # when tenants were moved
        self._seconds = {MoveAction.SUSPEND: suspend_seconds, MoveAction.RESUME: resume_seconds}
        self._step = step_seconds
        self._shared = shared
        self._moving: tuple[float, str, TenantState] | None = None

    @property
    def tenants(self) -> list[MovableTenant]:
        """The tenants as they are now."""
        return [program.tenant for program in self.programs.values()]

    def step(self) -> None:
        """Let one step pass; AssertionError if the policy exceeds the device."""
        self.now += self._step
        working = sum(
            x.works and x.tenant.state is TenantState.RUNNING for x in self.programs.values()
        )
        for program in self.programs.values():
            self._work(program, self._step / (working if self._shared and working else 1))
        if self._moving and self.now >= self._moving[0]:
            _, key, state = self._moving
            self._set(key, state=state, since=self.now, is_new=False, wanted=None)
            self._moving = None
        move = oversubscription.decide(self.pool, self.tenants, self.now)
        if move is not None:
            self._begin(move)
        on_device = [x for x in self.tenants if x.state is not TenantState.SUSPENDED]
        assert sum(x.memory for x in on_device) <= self.pool.memory
        assert sum(x.vcore for x in on_device) <= self.pool.vcore

    def _set(self, key: str, **fields: object) -> None:
        program = self.programs[key]
        program.tenant = dataclasses.replace(program.tenant, **fields)  # type: ignore[arg-type]

    def _begin(self, move: oversubscription.Move) -> None:
        assert self._moving is None
        moved = self.programs[move.key].tenant
        after = TenantState.SUSPENDED if move.action is MoveAction.SUSPEND else TenantState.RUNNING
        if move.action is MoveAction.SUSPEND:
            candidate = self.programs[move.for_key].tenant
            is_idle = self.now - max(moved.worked, moved.since) >= moved.rules.idle_seconds
            part = min(1.0, moved.weight / max(x.weight for x in self.tenants))
            had_slice = self.now - moved.since >= moved.rules.slice_seconds * part
            assert is_idle or (had_slice and not candidate.is_new)
        counted = not (move.action is MoveAction.RESUME and moved.is_new)
        if counted:
            self.log.append(self.now)
        moves = (*moved.moves, self.now) if counted else moved.moves
        self._set(move.key, state=TenantState.MOVING, since=self.now, moves=moves[-64:])
        self._moving = (self.now + self._seconds[move.action], move.key, after)

    def _work(self, program: Program, device_seconds: float) -> None:
        if program.left <= 0:
            self._turn(program)
        if not program.works:
            program.left -= self._step
        elif program.tenant.state is TenantState.RUNNING:
            if not program.has_room:
                program.has_room = True
                program.waits.append(self.now - program.began)
            program.left -= device_seconds
            program.had += device_seconds
            self._set(program.tenant.key, worked=self.now)
        elif program.tenant.state is TenantState.SUSPENDED and program.tenant.wanted is None:
            self._set(program.tenant.key, wanted=self.now)

    def _turn(self, program: Program) -> None:
        if program.works:
            program.jobs.append(self.now - program.began)
        program.works = not program.works
        if program.works:
            program.left, program.began, program.has_room = program.work_seconds, self.now, False
        else:
            program.left = program.draw(program.rest_seconds)
