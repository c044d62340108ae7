"""Runs programs in containers on one simulated device, and records the device time of each.

A scene lists the tenants, their programs and the events; play() plays it and returns a trace. Time
is that of the virtual clock (csrc/bench/share/virtualclock.c), so that other load on this computer
does not change the results, or real. The witness (csrc/bench/share/witness.c) reads the
simulator's own account of work done, independently of what the shim publishes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_environments
import built
import laws
import scene_clock

from pyvgpu import errors, names, quota, shim
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND_NS = 1_000_000_000
ARBITER = -1  # in the place of a tenant
PRIORITIES = "SHARE_PRIORITIES"  # of a program's streams, in turn
CHILD = "child"  # what a program calls the pids of its children, with a number


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """A container and its work; with vcore None a program on the bare driver."""

    vcore: int | None
    kind: str  # of work.c
    length_ns: int
    processes: int = 1
    limit: int | None = None  # elastic: up to so much, while others leave it
    begin_s: float = 0
    end_s: float | None = None  # None: as long as the scene
    more: tuple[int, ...] = ()  # further arguments of its kind
    priority: quota.Priority = quota.Priority.NORMAL


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An event of a tenant, or of the arbiter, at a moment: an action of director.py."""

    at_s: float
    action: str
    tenant: int = ARBITER
    value: int | str = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """The tenants of the device, the events, and the duration."""

    tenants: tuple[Tenant, ...]
    seconds: float
    events: tuple[Event, ...] = ()
    arbiter: bool = True
    real_clock: bool = False
    witness_ns: int = 5_000_000  # its period
    law: laws.Law = laws.TODAY


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Device time of each tenant, sampled every few milliseconds."""

    at_ns: tuple[int, ...]  # since the scene began
    had_ns: tuple[tuple[int, ...], ...]  # by tenant, by moment
    programs: tuple[tuple[dict[str, int], ...], ...]  # by tenant: what each program says it did
    forced: int  # of the virtual clock: how often it went on without a thread


def play(scene: Scene, cache: Path) -> Trace:
    """Run the scene from start to end."""
    with bench_environments.place() as folder, contextlib.ExitStack() as stack:
        clock = None if scene.real_clock else scene_clock.Clock(folder / "clock")
        stage = _Stage(folder, cache, scene.law, clock, stack)
        for tenant in scene.tenants:
            stage.add(tenant)
        if scene.arbiter and any(each.vcore is not None for each in scene.tenants):
            stage.start_arbiter()
        if scene.events:
            stage.start_director(scene.events)
        lines = stage.run(scene)
        pids = stage.finish()
        programs = tuple(tuple(map(_said, each.programs)) for each in stage.placed)
        for pid, each in zip(pids, programs, strict=True):
            pid |= {number for said in each for key, number in said.items() if CHILD in key}
    at_ns, had_ns = _read(lines, pids)
    return Trace(at_ns, had_ns, programs, clock.forced if clock else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class _Placed:
    """A tenant on the stage."""

    tenant: Tenant
    programs: tuple[subprocess.Popen[str], ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    quota: int  # -1: it has none
    clock: Path  # that the arbiter keeps for it


class _Stage:
    """Everything that runs in one scene."""

    def __init__(
        self,
        folder: Path,
        cache: Path,
        law: laws.Law,
        clock: scene_clock.Clock | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self._folder, self._cache, self._law = folder, cache, law
        self._machine = simulator.open_machine(
            bench_environments.MODEL, folder / "machines", law=law.device
        )
        self._clock, self._stack = clock, stack
        self._bare = bench_environments.bare(folder)
        self._registry = folder / "registry"
        self._registry.mkdir()
        self._registry.chmod(0o1777)
        self._arbiter: subprocess.Popen[str] | None = None
        self._director: subprocess.Popen[str] | None = None
        self.placed: list[_Placed] = []

    def add(self, tenant: Tenant) -> None:
        """Start the programs of a tenant; they wait for the scene to begin."""
        libraries, quota, clock = self._bare, -1, Path()
        if tenant.vcore is not None:
            container = self._stack.enter_context(
                bench_environments.container(
                    self._run_folder(),
                    self._cache,
                    self._machine,
                    tenant.vcore,
                    tenant.limit,
                    tenant.priority,
                )
            )
            libraries, quota = container.folder, container.quota
            clock = self._link_clock(container.region)
        numbers = map(str, (tenant.length_ns, *tenant.more))
        command = (str(built.tool("share/work")), tenant.kind, *numbers)
        environment = self._environment(libraries)
        programs = tuple(self._start(command, environment) for _ in range(tenant.processes))
        self.placed.append(_Placed(tenant, programs, command, environment, quota, clock))

    def start_arbiter(self) -> None:
        """Start the arbiter over all containers of the scene, and wait for its clock."""
        self._arbiter = self._start(self._arbiter_command(), self._environment(self._bare))
        deadline = time.monotonic() + built.TIMEOUT_SECONDS
        clocks = [each.clock for each in self.placed if each.tenant.vcore is not None]
        while not all(clock.exists() for clock in clocks):
            if self._arbiter.poll() is not None or time.monotonic() > deadline:
                raise errors.UnavailableError("the arbiter accounts no time")
            time.sleep(0.005)

    def start_director(self, events: Sequence[Event]) -> None:
        """Start the director, which executes the events."""
        plan = {
            "quotas": [each.quota for each in self.placed],
            "clocks": [str(each.clock) for each in self.placed],
            "pids": {
                **{i: [p.pid for p in each.programs] for i, each in enumerate(self.placed)},
                ARBITER: [self._arbiter.pid] if self._arbiter else [],
            },
            "commands": {
                **{i: (each.command, each.environment) for i, each in enumerate(self.placed)},
                ARBITER: (self._arbiter_command(), self._environment(self._bare)),
            },
            "events": [
                (round(each.at_s * SECOND_NS), each.action, each.tenant, each.value)
                for each in sorted(events, key=lambda event: event.at_s)
            ],
        }
        path = self._folder / "plan"
        path.write_text(json.dumps(plan))
        script = Path(__file__).with_name("director.py")
        self._director = self._start(
            (sys.executable, str(script), str(path)),
            self._environment(self._bare),
            pass_fds=[each.quota for each in self.placed if each.quota >= 0],
        )

    def run(self, scene: Scene) -> list[str]:
        """Start all at the same moment; return that, and the witness's output."""
        command = (str(built.tool("share/witness")), str(scene.witness_ns))
        witness = self._start(command, self._environment(self._bare))
        ours = [witness, *([self._director] if self._director else [])]
        programs = [program for each in self.placed for program in each.programs]
        for program in (*programs, *ours):
            if program.stdout is None or program.stdout.readline() != "ready\n":
                raise errors.UnavailableError(f"{_name(program)}: it did not come to its start")
        if self._clock:
            self._clock.gather()
        begin = time.monotonic_ns() + SECOND_NS // 2
        end = begin + round(scene.seconds * SECOND_NS)
        for program in ours:
            _tell(program, f"{begin} {end}")
        for each in self.placed:
            first = begin + round(each.tenant.begin_s * SECOND_NS)
            last = (
                end if each.tenant.end_s is None else begin + round(each.tenant.end_s * SECOND_NS)
            )
            for program in each.programs:
                _tell(program, f"{first} {last}")
        if self._clock:
            arbiter = {self._arbiter.pid} if self._arbiter else set()
            self._clock.start({program.pid for program in (*programs, *ours)} | arbiter)
        assert witness.stdout is not None
        lines = witness.stdout.read().splitlines()
        if witness.wait(built.TIMEOUT_SECONDS):
            raise errors.UnavailableError(f"the witness ended with {witness.returncode}")
        return [f"{begin}", *lines]

    def finish(self) -> list[set[int]]:
        """Wait for the end of all that was not killed; return whose process is which."""
        pids = [{program.pid for program in each.programs} for each in self.placed]
        if self._director:
            said, _ = self._director.communicate(timeout=built.TIMEOUT_SECONDS)
            if self._director.returncode:
                raise errors.UnavailableError("the director did not come to the end")
            for tenant, pid in (map(int, line.split()) for line in said.splitlines()):
                if tenant != ARBITER:
                    pids[tenant].add(pid)
        for each in self.placed:
            for program in each.programs:
                if program.wait(built.TIMEOUT_SECONDS) not in (0, -signal.SIGKILL):
                    raise errors.UnavailableError(
                        f"{_name(program)} ended with {program.returncode}"
                    )
        return pids

    def _run_folder(self) -> Path:
        """Return where the next container's region is: called as runs in the registry are."""
        number = len(self.placed) + 1
        return self._registry / f"{int.from_bytes(os.urandom(6)):012x}{number:04x}"

    def _link_clock(self, region: Path) -> Path:
        """Let the container find its clock as a supervisor does; return which that is."""
        clock = self._arbiter_folder / f"{region.name}.0"
        (region / f"{names.CLOCK_LINK}0").symlink_to(clock)
        return clock

    @property
    def _arbiter_folder(self) -> Path:
        return self._registry / f"{names.ARBITER_FOLDER}{os.geteuid()}"

    def _arbiter_command(self) -> tuple[str, ...]:
        folder, nowhere = self._arbiter_folder, self._folder / "nowhere"
        program = shim.arbiter_program()
        nvml = self._bare / "libnvidia-ml.so.1"
        places = (str(folder), str(nowhere), str(self._registry))
        return (str(program), "--foreground", "--nvml", str(nvml), *places)

    def _environment(self, libraries: Path) -> dict[str, str]:
        return {
            **bench_environments.clean(self._machine),
            **(self._clock.environment if self._clock else {}),
            "LD_LIBRARY_PATH": str(libraries),
            PRIORITIES: " ".join(map(str, self._law.priorities)),
        }

    def _start(
        self, command: Sequence[str], environment: dict[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self._stack.callback(_end, program)
        return program


def _tell(program: subprocess.Popen[str], words: str) -> None:
    assert program.stdin is not None
    program.stdin.write(words + "\n")
    program.stdin.flush()


def _end(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait()
    for stream in (program.stdin, program.stdout):
        if stream is not None:
            stream.close()


def _name(program: subprocess.Popen[str]) -> str:
    return " ".join(map(str, program.args)) if isinstance(program.args, tuple) else "a program"


def _said(program: subprocess.Popen[str]) -> dict[str, int]:
    assert program.stdout is not None
    said: dict[str, int] = json.loads(program.stdout.read() or "{}")  # {}: it was killed
    return said


def _read(
    lines: Sequence[str], pids: Sequence[set[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return moments, and by tenant what it had had by then."""
    begin, *seen = lines
    whose = {pid: number for number, each in enumerate(pids) for pid in each}
    last: dict[int, int] = {}
    moments: list[int] = []
    had: list[list[int]] = [[] for _ in pids]
    for line in seen:
        at, *words = line.split()
        last.update((int(pid), int(ns)) for pid, _, ns in (word.partition(":") for word in words))
        moments.append(int(at) - int(begin))
        for number, column in enumerate(had):
            column.append(sum(ns for pid, ns in last.items() if whose.get(pid) == number))
    return tuple(moments), tuple(map(tuple, had))
