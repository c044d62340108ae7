"""Runs programs in containers on one simulated device, and writes down what each has had of it.

A scene says who runs what and when; stage() plays it and returns a trace. Time is the virtual
clock's (csrc/bench/share/virtualclock.c), so that other load on this computer does not change what
is measured, or the real one's. The witness (csrc/bench/share/witness.c) reads the simulator's own
account of what ran; nothing that the shim publishes is asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import mmap
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rooms

from pyvgpu import errors, simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND_NS = 1_000_000_000
PATIENCE_SECONDS = 600
BUILD = Path(__file__).parents[1] / "build"
_THREADS = 128  # VIRTUALCLOCK_THREADS
_GATHER, _GOES = 1, 2


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """A container, or with vcore None a program that has the device's own driver, and its work."""

    vcore: int | None
    kind: str  # of work.c
    length_ns: int
    processes: int = 1
    begin_s: float = 0
    end_s: float | None = None  # None: as long as the scene
    changes: tuple[tuple[float, int], ...] = ()  # at which second which vcore


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """Who shares the device, and for how long."""

    tenants: tuple[Tenant, ...]
    seconds: float
    arbiter: bool = True
    real_clock: bool = False
    witness_ns: int = 5_000_000  # how often it looks


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """What each tenant has had of the device's time, as it was seen every few milliseconds."""

    at_ns: tuple[int, ...]  # since the scene began
    had_ns: tuple[tuple[int, ...], ...]  # by tenant, by moment
    programs: tuple[tuple[dict[str, int], ...], ...]  # by tenant: what each program says it did
    forced: int  # of the virtual clock: how often it went on without somebody


class _Thread(ctypes.Structure):
    _fields_ = (
        ("thread", ctypes.c_uint32),
        ("process", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("wakes", ctypes.c_uint32),
        ("at_ns", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 5),
    )


class _Clock(ctypes.Structure):
    _fields_ = (
        ("mode", ctypes.c_uint32),
        ("forced", ctypes.c_uint32),
        ("frontier_ns", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 6),
        ("threads", _Thread * _THREADS),
    )


class Clock:
    """The file of a virtual clock; real until it is started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Clock)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._shared = _Clock.from_buffer(self._map)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs that go by this clock."""
        return {"LD_PRELOAD": str(tool("libvirtualclock.so")), "SHARE_CLOCK": str(self.path)}

    @property
    def forced(self) -> int:
        """How often somebody went on although another one was behind."""
        return int(self._shared.forced)

    def gather(self) -> None:
        """Let everybody who asks for the time wait for start()."""
        self._shared.mode = _GATHER

    def start(self, processes: set[int]) -> None:
        """Start once all of *processes* wait for it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not processes <= {t.process for t in self._shared.threads if t.thread}:
            if time.monotonic() > deadline:
                raise errors.UnavailableError("not all programs came to the start")
            time.sleep(0.002)
        self._shared.mode = _GOES


def tool(name: str) -> Path:
    """Return a program of csrc/bench/share, the newest if there are several."""
    found = sorted(BUILD.glob(f"*/csrc/bench/share/{name}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise errors.UnavailableError(f"no csrc/bench/share/{name} below {BUILD}: run make build")
    return found[-1]


def play(scene: Scene, cache: Path) -> Trace:
    """Run all that is in the scene, from its first moment to its last."""
    with rooms.place() as folder, contextlib.ExitStack() as stack:
        machine = simulator.open_machine(rooms.MODEL, folder / "machines")
        clock = None if scene.real_clock else Clock(folder / "clock")
        stage = _Stage(folder, cache, machine, clock, stack)
        tenants = [stage.add(number, tenant) for number, tenant in enumerate(scene.tenants)]
        if scene.arbiter:
            stage.start_arbiter()
        lines = stage.run(scene)
        stage.finish()
        programs = tuple(tuple(map(_said, each.programs)) for each in tenants)
    pids = [{program.pid for program in each.programs} for each in tenants]
    at_ns, had_ns = _read(lines, pids)
    return Trace(at_ns, had_ns, programs, clock.forced if clock else 0)


@dataclasses.dataclass(slots=True)
class _Placed:
    tenant: Tenant
    programs: list[subprocess.Popen[str]]
    container: rooms.Container | None


class _Stage:
    """Everything that runs in one scene."""

    def __init__(
        self,
        folder: Path,
        cache: Path,
        machine: simulator.Machine,
        clock: Clock | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self._folder, self._cache, self._machine = folder, cache, machine
        self._clock, self._stack = clock, stack
        self._bare = rooms.bare(folder)
        self._programs: list[tuple[subprocess.Popen[str], Tenant | None]] = []
        self._placed: list[_Placed] = []

    def add(self, number: int, tenant: Tenant) -> _Placed:
        made = None
        if tenant.vcore is not None:
            place = self._folder / f"tenant{number}"
            place.mkdir()
            made = self._stack.enter_context(
                rooms.container(place, self._cache, self._machine, tenant.vcore)
            )
        libraries = made.folder if made else self._bare
        command = [str(tool("work")), tenant.kind, str(tenant.length_ns)]
        programs = [self._start(command, libraries, tenant) for _ in range(tenant.processes)]
        placed = _Placed(tenant, programs, made)
        self._placed.append(placed)
        if made and tenant.changes:
            script = Path(__file__).with_name("changer.py")
            changer = [sys.executable, str(script), str(made.quota)]
            self._start(changer, self._bare, tenant, pass_fds=(made.quota,))
        return placed

    def start_arbiter(self) -> None:
        """Start the arbiter over all containers of the scene."""

    def run(self, scene: Scene) -> list[str]:
        """Let all begin at the same moment; return what the witness saw."""
        witness = self._start([str(tool("witness")), str(scene.witness_ns)], self._bare, None)
        for program, _ in self._programs:
            if program.stdout is None or program.stdout.readline() != "ready\n":
                raise errors.UnavailableError(f"{_name(program)}: it did not come to its start")
        if self._clock:
            self._clock.gather()
        begin = time.monotonic_ns() + SECOND_NS // (1 if self._clock else 2)
        end = begin + round(scene.seconds * SECOND_NS)
        for program, tenant in self._programs:
            _tell(program, _words(tenant, begin, end))
        if self._clock:
            self._clock.start({program.pid for program, _ in self._programs})
        assert witness.stdout is not None
        lines = witness.stdout.read().splitlines()
        if witness.wait(PATIENCE_SECONDS):
            raise errors.UnavailableError(f"the witness ended with {witness.returncode}")
        return [f"{begin}", *lines]

    def finish(self) -> None:
        for program, _ in self._programs:
            if program.wait(PATIENCE_SECONDS):
                raise errors.UnavailableError(f"{_name(program)} ended with {program.returncode}")

    def _start(
        self, command: Sequence[str], libraries: Path, tenant: Tenant | None, **options: Any
    ) -> subprocess.Popen[str]:
        environment = {
            **rooms.clean(self._machine),
            **(self._clock.environment if self._clock else {}),
            "LD_LIBRARY_PATH": str(libraries),
        }
        program = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self._stack.callback(_end, program)
        self._programs.append((program, tenant))
        return program


def _words(tenant: Tenant | None, begin: int, end: int) -> str:
    """Return what a program is told at its start."""
    if tenant is None:
        return f"{begin} {end}"
    first = begin + round(tenant.begin_s * SECOND_NS)
    last = end if tenant.end_s is None else begin + round(tenant.end_s * SECOND_NS)
    changes = itertools.chain(
        *((str(begin + round(second * SECOND_NS)), str(vcore)) for second, vcore in tenant.changes)
    )
    return " ".join([str(first), str(last), *changes])


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
    return " ".join(map(str, program.args)) if isinstance(program.args, list) else "a program"


def _said(program: subprocess.Popen[str]) -> dict[str, int]:
    assert program.stdout is not None
    said: dict[str, int] = json.loads(program.stdout.read())
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
