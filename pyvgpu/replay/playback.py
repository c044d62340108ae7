"""Plays programs concurrently on one simulated device, each with or without a container.

Time is virtual (virtualclock.py), so that a replay takes only as long as it computes, and its
results do not depend on other load. Device time is measured by the simulator, independently of the
shim's own counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names, shim
from pyvgpu.replay import environments
from pyvgpu.replay.virtualclock import TIMEOUT_SECONDS, Clock
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import IO

    from pyvgpu.replay.program import PlayerProgram

AHEAD_NS = 100_000_000  # lead time of the start
FOREVER_NS = 10**15


@dataclasses.dataclass(frozen=True, slots=True)
class PlayedProgram:
    """A program to play, its share, and the number of repetitions."""

    program: PlayerProgram
    vcore: int | None = None  # None: without the shim
    times: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """The result of a part; times are in ns since the start."""

    makespan_ns: int
    launches: int
    launching_ns: int  # in launch calls
    longest_launch_ns: int
    longest_other_ns: int  # of calls that should not wait
    slow_launches: int  # over 10 ms
    disorder: int  # calls made before an earlier call of their stream
    forced: int  # how often the virtual clock advanced without a lagging thread
    had: tuple[tuple[int, int], ...]  # times, and the device time used by then

    @property
    def busy_ns(self) -> int:
        """The total device time."""
        return self.had[-1][1]

    def had_by(self, moment_ns: int) -> float:
        """Return the device time used by a moment."""
        last = (0, 0)
        for at, had in self.had:
            if at >= moment_ns:
                part = (moment_ns - last[0]) / max(1, at - last[0])
                return last[1] + part * (had - last[1])
            last = (at, had)
        return last[1]


def play(
    parts: Sequence[PlayedProgram], cache: Path, law: simulator.Law, witness_ns: int = 1_000_000
) -> list[Played]:
    """Play all parts, starting at the same moment."""
    with environments.place() as folder, contextlib.ExitStack() as stack:
        machine = simulator.open_machine(environments.MODEL, folder / "machines", law=law)
        return _Stage(folder, cache, machine, stack).play(parts, witness_ns)


class _Stage:
    def __init__(
        self, folder: Path, cache: Path, machine: simulator.Machine, stack: contextlib.ExitStack
    ) -> None:
        self._folder, self._cache, self._machine, self._stack = folder, cache, machine, stack
        self._clock = Clock(folder / "clock", shim.replay_tool("libvirtualclock.so"))
        self._bare = environments.bare(folder)
        self._registry = folder / "registry"
        self._registry.mkdir()
        self._registry.chmod(0o1777)

    def play(self, parts: Sequence[PlayedProgram], witness_ns: int) -> list[Played]:
        places = [self._make_place(number, part) for number, part in enumerate(parts)]
        linger = str(4 * witness_ns)
        players = []
        for number, (part, libraries) in enumerate(zip(parts, places, strict=True)):
            path = self._folder / f"{number}.program"
            path.write_bytes(part.program.pack())
            command = (str(shim.replay_tool("player")), str(path), str(part.times), linger)
            players.append(self._start(command, libraries))
        arbiters = self._start_arbiter() if any(p.vcore for p in parts) else []
        with (self._folder / "seen").open("w+") as seen:
            witness_command = (str(shim.replay_tool("witness")), str(witness_ns))
            witness = self._start(witness_command, self._bare, seen)
            begin = self._begin(parts, players, witness, arbiters)
            said = [_read_report(player) for player in players]
            witness.kill()
            witness.wait()
            seen.seek(0)
            lines = seen.read().splitlines()[1:]  # without "ready"
        pids = [player.pid for player in players]
        return [
            _played(report, begin, self._clock.forced, _had(lines, pid, begin))
            for report, pid in zip(said, pids, strict=True)
        ]

    def _begin(
        self,
        parts: Sequence[PlayedProgram],
        players: Sequence[subprocess.Popen[str]],
        witness: subprocess.Popen[str],
        arbiters: Sequence[subprocess.Popen[str]],
    ) -> int:
        for player in players:
            if _read_line(player) != "ready\n":
                raise errors.UnavailableError("the player did not start")
        self._clock.gather()
        begin = time.monotonic_ns() + AHEAD_NS
        for player in players:
            _tell(player, f"{begin}")
        _tell(witness, f"{begin} {FOREVER_NS}")
        threads = {
            player.pid: len(part.program.threads)
            for player, part in zip(players, parts, strict=True)
        }
        processes = {program.pid for program in (*players, witness, *arbiters)}
        self._clock.start(processes, threads)
        return begin

    def _make_place(self, number: int, part: PlayedProgram) -> Path:
        """Return the library folder of a part."""
        if part.vcore is None:
            return self._bare
        folder = self._registry / f"{int.from_bytes(os.urandom(6)):012x}{number + 1:04x}"
        container = self._stack.enter_context(
            environments.container(folder, self._cache, self._machine, part.vcore)
        )
        clock = self._arbiter_folder / f"{folder.name}.0"
        (folder / f"{names.CLOCK_LINK}0").symlink_to(clock)
        return container.folder

    @property
    def _arbiter_folder(self) -> Path:
        return self._registry / f"{names.ARBITER_FOLDER}{os.geteuid()}"

    def _start_arbiter(self) -> list[subprocess.Popen[str]]:
        folder, nowhere = str(self._arbiter_folder), str(self._folder / "nowhere")
        program = str(shim.arbiter_program())
        command = (program, "--foreground", folder, nowhere, str(self._registry))
        arbiter = self._start(command, self._bare)
        links = list(self._registry.glob(f"*/{names.CLOCK_LINK}0"))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(link.exists() for link in links):
            if arbiter.poll() is not None or time.monotonic() > deadline:
                raise errors.UnavailableError("the arbiter accounts no time")
            time.sleep(0.005)
        return [arbiter]

    def _start(
        self, command: Sequence[str], libraries: Path, output: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        environment = {
            **environments.clean(self._machine),
            **self._clock.environment,
            "LD_LIBRARY_PATH": str(libraries),
        }
        program = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, text=True
        )
        self._stack.callback(_end, program)
        return program


def _end(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait()
    for stream in (program.stdin, program.stdout):
        if stream is not None:
            stream.close()


def _tell(program: subprocess.Popen[str], words: str) -> None:
    if program.stdin is not None:
        program.stdin.write(f"{words}\n")
        program.stdin.flush()


def _read_line(program: subprocess.Popen[str]) -> str:
    return program.stdout.readline() if program.stdout is not None else ""


def _read_report(player: subprocess.Popen[str]) -> dict[str, int]:
    text = _read_line(player)
    if not text:
        raise errors.UnavailableError(f"the player ended with {player.wait()}")
    report: dict[str, int] = json.loads(text)
    player.wait()
    return report


def _had(lines: Sequence[str], pid: int, begin: int) -> tuple[tuple[int, int], ...]:
    seen, had = [], 0
    for line in lines:
        at, *words = line.split()
        for word in words:
            whose, _, busy = word.partition(":")
            if int(whose) == pid:
                had = int(busy)
        seen.append((int(at) - begin, had))
    return tuple(seen)


def _played(
    report: dict[str, int], begin: int, forced: int, had: tuple[tuple[int, int], ...]
) -> Played:
    return Played(
        report["ended"] - begin,
        report["launches"],
        report["launching_ns"],
        report["longest_launch_ns"],
        report["longest_other_ns"],
        report["slow_launches"],
        report["disorder"],
        forced,
        had,
    )
