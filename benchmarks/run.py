"""`make bench`: overhead of the shim over the bare driver in the same run.

Every measurement is made on both sides, in alternating order, so that changes on the machine
affect both; single calls in short phases, between which the two programs alternate. figures.py
defines how repetitions become one number. The exit code is 1 if a figure is past its goal, and a
line says which. docs/performance.md explains the figures.

    benchmarks/run.py --quick --only pair --only refusal
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import bench_environments
import figures
import host
from rich import box
from rich.console import Console
from rich.table import Table

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPETITIONS = 11
QUICK_REPETITIONS = 3
TIMEOUT_SECONDS = 300
TABLE_WIDTH = 108  # lines wrapped by a terminal are better than truncated cells


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A figure over all repetitions, in the unit of its metric."""

    figure: figures.Figure
    bare: float
    shim: float
    added: float

    @property
    def evaluated(self) -> float:
        """The value that is compared with the goal."""
        if self.figure.evaluated == "ratio":
            return self.shim / self.bare
        return self.added if self.figure.evaluated == "added" else self.shim

    @property
    def passed(self) -> bool | None:
        """Whether the goal was met; None if there is none."""
        return None if self.figure.goal is None else self.evaluated <= self.figure.goal


def main() -> int:
    """Measure, show, record; 1 if a goal was missed."""
    options = _parse_options()
    chosen = [f for f in figures.FIGURES if not options.only or f.name in options.only]
    try:
        taken = measure(find_load(), chosen, quick=options.quick, quiet=options.json)
    except (errors.PyVgpuError, subprocess.SubprocessError, OSError) as exc:
        stderr = getattr(exc, "stderr", None) or ""
        print(f"bench: {exc}\n{stderr}".rstrip(), file=sys.stderr)
        return 70
    outcomes = [evaluate(figure, taken[figure.measurement.name]) for figure in chosen]
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "driver": f"simulated {bench_environments.MODEL}, free mode",
        "machine": host.describe(),
        "figures": [_record(outcome) for outcome in outcomes],
        "measurements": taken,
    }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        show(outcomes)
        print(host.remark())
    if not options.quick and not options.only:
        host.keep(document, aloud=not options.json)
    missed = [outcome for outcome in outcomes if outcome.passed is False]
    for outcome in missed:
        print(f"past its goal: {_sentence(outcome)}", file=sys.stderr)
    return 1 if missed else 0


def find_load() -> Path:
    """Return the load generator in the build folder, the newest if there are several."""
    build = Path(__file__).parents[1] / "build"
    found = sorted(build.glob("*/csrc/bench/load"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise errors.UnavailableError(f"no csrc/bench/load below {build}: run make build")
    return found[-1]


Lines = dict[str, list[dict[str, Any]]]  # output lines, by side
Taken = dict[str, Lines]  # by measurement


def measure(load: Path, chosen: Sequence[figures.Figure], *, quick: bool, quiet: bool) -> Taken:
    """Make every measurement that *chosen* needs, both sides in turn."""
    wanted = list(dict.fromkeys(figure.measurement for figure in chosen))
    taken: Taken = {each.name: {side: [] for side in bench_environments.SIDES} for each in wanted}
    console = Console(stderr=True, quiet=quiet)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    with tempfile.TemporaryDirectory() as cache, console.status("") as status:
        for repetition in range(repetitions):
            sides = (
                bench_environments.SIDES if repetition % 2 == 0 else bench_environments.SIDES[::-1]
            )
            for each in wanted:
                status.update(f"{each.name}, {repetition + 1} of {repetitions}")
                arguments = each.quick if quick else each.arguments
                if each.of_arbiter:
                    lines = _measure_arbiter(*arguments)
                else:
                    with contextlib.ExitStack() as stack:
                        made = [
                            bench_environments.make(Path(cache), each.vcore, timed=each.timed)
                            for _ in sides
                        ]
                        place = dict(zip(sides, map(stack.enter_context, made), strict=True))
                        for side in sides:
                            _check_total(load, place[side], side)
                        lines = _measure_sides(load, each.turns, arguments, place)
                for side, of_side in lines.items():
                    taken[each.name][side] += of_side
    return taken


def _measure_sides(
    load: Path, turns: int, arguments: Sequence[str], place: Mapping[str, bench_environments.Room]
) -> Lines:
    """Return the output of `load` on each side, in the room for it; alternating if in turns."""
    if turns == 1:
        return {
            side: [_run(load, room.environments[side], *arguments)] for side, room in place.items()
        }
    sides = list(place)
    lines: Lines = {side: [] for side in sides}
    with contextlib.ExitStack() as stack:
        programs = {
            side: stack.enter_context(Phases(load, place[side].environments[side], arguments))
            for side in sides
        }
        for side in sides:  # to warm up
            programs[side].next()
        for _ in range(turns):
            for side in sides:
                lines[side].append(programs[side].next())
            sides.reverse()
    return lines


class Phases:
    """The load generator, which measures a phase for each input line.

    Raises:
        UnavailableError: It has failed, or is not done in time.

    """

    def __init__(
        self, load: Path, environment: Mapping[str, str], arguments: Sequence[str]
    ) -> None:
        self._command = [str(load), *arguments, "by-lines"]
        self._program = subprocess.Popen(
            self._command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._timer = threading.Timer(TIMEOUT_SECONDS, self._program.kill)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._program.kill()
        self._program.communicate()

    def next(self) -> dict[str, Any]:
        """Return the line about one more phase."""
        if self._program.stdin is None or self._program.stdout is None:
            raise AssertionError("it was started with pipes")
        with contextlib.suppress(BrokenPipeError):
            self._program.stdin.write("\n")
            self._program.stdin.flush()
        said = self._program.stdout.readline()
        if not said:
            self._program.kill()
            failure = self._program.communicate()[1].strip()
            raise errors.UnavailableError(f"{' '.join(self._command)}: {failure or 'no answer'}")
        line: dict[str, Any] = json.loads(said)
        return line


def _measure_arbiter(*arguments: str) -> Lines:
    """Return by side what it costs, and beside it what waking as often costs by itself."""
    script = Path(__file__).with_name("arbiter.py")
    done = subprocess.run(
        [sys.executable, script, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,  # it has goals of its own
    )
    if not done.stdout:
        raise errors.UnavailableError(f"arbiter.py: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    return {
        "bare": [{"percent": statistics.median(said["sleeper_percent"]), "resident": 0}],
        "shim": [
            {
                "percent": statistics.median(said["cpu_percent"]),
                "resident": said["resident_kib"] << 10,
            }
        ],
    }


def evaluate(figure: figures.Figure, taken: Mapping[str, list[dict[str, Any]]]) -> Outcome:
    """Sum a figure up over its turns or repetitions, each of which is a pair."""
    pairs = [
        (bare[figure.metric], shim[figure.metric])
        for bare, shim in zip(taken["bare"], taken["shim"], strict=True)
    ]
    if figure.metric == "p50" and figure.measurement.turns > 1:
        pairs = sorted(pairs, key=sum)[: -(-len(pairs) // figures.LEAST_DISTURBED)]
    bare, shim = zip(*pairs, strict=True)
    added = [one - other for one, other in zip(shim, bare, strict=True)]
    return Outcome(figure, *map(statistics.median, (bare, shim, added)))


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table."""
    table = Table(
        caption="the driver is the simulated one, in its free mode",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("figure", no_wrap=True)
    for heading in ("bare", "shim", "added", "ratio", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for outcome in outcomes:
        figure = outcome.figure
        verdict = {True: "[green]met", False: "[red bold]MISSED", None: ""}[outcome.passed]
        ratio = f"{outcome.shim / outcome.bare:.2f}" if outcome.bare else ""
        values = (outcome.bare, outcome.shim, outcome.added)
        table.add_row(
            figure.title,
            *(figure.quantity(value) for value in values),
            ratio,
            figure.goal_in_words(),
            verdict,
        )
    Console(width=max(TABLE_WIDTH, Console().width)).print(table)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what the shim costs.")
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer samples, three repetitions, nothing written")
    add("--json", action="store_true", help="print the whole record instead of the table")
    add(
        "--only",
        action="append",
        choices=[figure.name for figure in figures.FIGURES],
        help="this figure alone (may be given again); nothing is written",
    )
    return parser.parse_args()


def _check_total(load: Path, room: bench_environments.Room, side: str) -> None:
    """Make sure that the shim is there, and enforces, on its side alone."""
    total = _run(load, room.environments[side], "total")["total"]
    if total != room.totals[side]:
        raise errors.UnavailableError(
            f"{side}: the program sees {total} bytes, not {room.totals[side]}: "
            "the two sides are not what they should be"
        )


def _run(load: Path, environment: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [load, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    line: dict[str, Any] = json.loads(done.stdout)
    return line


def _record(outcome: Outcome) -> dict[str, Any]:
    figure = outcome.figure
    return {
        "name": figure.name,
        "title": figure.title,
        "metric": figure.metric,
        "bare": outcome.bare,
        "shim": outcome.shim,
        "added": outcome.added,
        "evaluated": figure.evaluated,
        "goal": figure.goal,
        "passed": outcome.passed,
    }


def _sentence(outcome: Outcome) -> str:
    figure = outcome.figure
    return (
        f"{figure.name} ({figure.title}): {figure.evaluated} "
        f"{figure.comparison(outcome.evaluated)}, "
        f"the goal is at most {figure.comparison(figure.goal or 0)}"
    )


if __name__ == "__main__":
    sys.exit(main())
