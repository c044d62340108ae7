"""Replay of recorded launches of real programs under a share: overhead, and accuracy of the share.

Each trace is played on the bare simulated driver and under the shim without a share, then alone at
each vcore; with --pair, beside another one, and the same pair on the bare driver, a control. The
traces are in a folder that is no part of this project: PYVGPU_TRACES, or shared/traces beside the
checkout; synthetic.py makes others with the same figures. Time is virtual, so other load changes
nothing but how long it takes. `make bench-replay` plays all of it and records it.

    benchmarks/replay.py resnet-v100-eager bert-h100-forward --vcore 25 50
    benchmarks/replay.py resnet-v100-eager rec-a100-nccl --pair
    benchmarks/replay.py pattern:training pattern:decode:7 --law seed:3
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import host
import launchtrace
import laws
import synthetic
from rich.console import Console

from pyvgpu import errors
from pyvgpu.replay import plan, playback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.replay.program import PlayerProgram
    from pyvgpu.replay.trace import Trace

VARIABLE = "PYVGPU_TRACES"
PATTERN = "pattern:"
FOLDER = Path("shared", "traces")  # beside a checkout, or above it
VCORES = (25, 50, 90, 99)
PAIRS = ((30, 70), (50, 50))
ALONE_SECONDS, PAIR_SECONDS = 1.5, 3.0
OVER_POINTS = 2.0
FREE_RATIO = 1.01
LONG_WITNESS_NS = 1_000_000
WITNESSED = 400  # moments, at least
RECORDED = (
    "trace", "vcore", "beside", "times", "bare_ms", "bare_busy", "made_ms", "to_ideal",
    "control_to_ideal", "held", "longest_ms", "bare_longest_ms", "disorder", "faults",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A trace, ready to replay."""

    trace: Trace
    program: PlayerProgram

    def part(self, vcore: int | None, times: int = 1) -> playback.PlayedProgram:
        """Return it with a share."""
        return playback.PlayedProgram(self.program, vcore, times)


class Player:
    """Plays pieces under one law, and remembers what they do on the bare driver."""

    def __init__(self, law: laws.Law, cache: Path) -> None:
        self._law, self._cache = law, cache
        self._bare: dict[tuple[str, int], playback.Played] = {}
        self._beside: dict[tuple[str, ...], list[playback.Played]] = {}

    def play(self, *parts: playback.PlayedProgram, length_ns: int) -> list[playback.Played]:
        """Play the parts beside each other; *length_ns*: of the shortest."""
        period = max(50_000, min(LONG_WITNESS_NS, length_ns // WITNESSED))
        return playback.play(parts, self._cache, self._law.device, period)

    def bare(self, piece: Piece, times: int = 1) -> playback.Played:
        """Play a piece alone on the driver."""
        key = (piece.trace.name, times)
        if key not in self._bare:
            length = piece.trace.duration * times
            self._bare[key] = self.play(piece.part(None, times), length_ns=length)[0]
        return self._bare[key]

    def repeats(self, piece: Piece, seconds: float) -> int:
        """Return how often a piece is played to last so long on the driver."""
        return max(1, math.ceil(seconds * 1e9 / self.bare(piece).makespan_ns))

    def bare_pair(self, pieces: Sequence[Piece], times: Sequence[int]) -> list[playback.Played]:
        """Play pieces beside each other on the driver."""
        key = tuple(piece.trace.name for piece in pieces)
        if key not in self._beside:
            length = min(p.trace.duration * n for p, n in zip(pieces, times, strict=True))
            parts = [piece.part(None, count) for piece, count in zip(pieces, times, strict=True)]
            self._beside[key] = self.play(*parts, length_ns=length)
        return self._beside[key]


def alone(player: Player, piece: Piece, vcore: int | None, times: int) -> list[dict[str, Any]]:
    """Play a piece at a share, or with None at 100, which is none."""
    began = time.monotonic()
    bare = player.bare(piece, times)
    (had,) = player.play(piece.part(vcore or 100, times), length_ns=bare.makespan_ns)
    share = (vcore or 100) / 100
    ideal = max(bare.makespan_ns, bare.busy_ns / share)
    held = had.busy_ns / had.makespan_ns
    faults = _faults(had)
    if vcore is None and had.makespan_ns > FREE_RATIO * bare.makespan_ns:
        faults.append(f"takes {had.makespan_ns / bare.makespan_ns:.3f} of bare")
    if vcore is not None and 100 * held > vcore + OVER_POINTS:
        faults.append(f"has {100 * held:.1f} %")
    return [
        {
            "trace": piece.trace.name,
            "vcore": vcore,
            "beside": None,
            "times": times,
            "bare_ms": bare.makespan_ns / 1e6,
            "bare_busy": 100 * bare.busy_ns / bare.makespan_ns,
            "made_ms": had.makespan_ns / 1e6,
            "ideal_ms": ideal / 1e6,
            "to_ideal": had.makespan_ns / ideal,
            "held": 100 * held,
            **_figures(had, bare),
            "faults": faults,
            "wall_s": time.monotonic() - began,
        }
    ]


def pair(
    player: Player, pieces: Sequence[Piece], vcores: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Play two pieces beside each other, each again until it has lasted so long."""
    began = time.monotonic()
    times = [player.repeats(piece, seconds) for piece in pieces]
    bare = [player.bare(piece, count) for piece, count in zip(pieces, times, strict=True)]
    parts = [p.part(v, n) for p, v, n in zip(pieces, vcores, times, strict=True)]
    played = player.play(*parts, length_ns=min(each.makespan_ns for each in bare))
    controls = player.bare_pair(pieces, times)
    both = min(each.makespan_ns for each in played)
    rows = []
    for number, (had, own) in enumerate(zip(played, bare, strict=True)):
        vcore = vcores[number]
        held = 100 * had.had_by(both) / both
        wanted = min(vcore, 100 * own.busy_ns / own.makespan_ns)
        ideal = max(own.makespan_ns, 100 * own.busy_ns / vcore)
        faults = _faults(had)
        if held > vcore + OVER_POINTS:
            faults.append(f"has {held:.1f} %")
        if held < wanted - OVER_POINTS:
            faults.append(f"has {held:.1f} % of {wanted:.1f}")
        rows.append(
            {
                "trace": pieces[number].trace.name,
                "vcore": vcore,
                "beside": pieces[1 - number].trace.name,
                "times": times[number],
                "bare_ms": own.makespan_ns / 1e6,
                "bare_busy": 100 * own.busy_ns / own.makespan_ns,
                "made_ms": had.makespan_ns / 1e6,
                "ideal_ms": ideal / 1e6,
                "to_ideal": had.makespan_ns / ideal,
                "control_to_ideal": controls[number].makespan_ns / ideal,
                "held": held,
                **_figures(had, own),
                "faults": faults,
                "wall_s": time.monotonic() - began,
            }
        )
    return rows


def middle(runs: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the run whose first time is the median, with the extremes of all."""
    ordered = sorted(runs, key=lambda rows: float(rows[0]["to_ideal"]))
    chosen = ordered[(len(ordered) - 1) // 2]
    for number, row in enumerate(chosen):
        times = [run[number]["to_ideal"] for run in runs]
        row["least_to_ideal"], row["most_to_ideal"] = min(times), max(times)
    return chosen


def _figures(had: playback.Played, bare: playback.Played) -> dict[str, Any]:
    return {
        "longest_ms": had.longest_launch_ns / 1e6,
        "bare_longest_ms": bare.longest_launch_ns / 1e6,
        "longest_other_ms": had.longest_other_ns / 1e6,
        "slow": had.slow_launches,
        "bare_slow": bare.slow_launches,
        "launches": had.launches,
        "launch_us": had.launching_ns / max(1, had.launches) / 1e3,
        "bare_launch_us": bare.launching_ns / max(1, bare.launches) / 1e3,
        "disorder": had.disorder,
        "forced": had.forced + bare.forced,
    }


def _faults(had: playback.Played) -> list[str]:
    return [f"{had.disorder} calls out of order"] if had.disorder else []


def heading() -> str:
    """Return the heading of the table."""
    return (
        f"{'trace':26}{'vcore':>6}{'bare ms':>9}{'busy %':>7}{'ms':>9}{'ideal':>9}"
        f"{'/ideal':>8}{'control':>8}{'of all runs':>14}{'held %':>8}{'longest ms':>14}"
        f"{'>10 ms':>8}{'us/launch':>13}{'wall s':>7}"
    )


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    name = row["trace"] if row["beside"] is None else f"{row['trace']} |"
    longest = f"{row['longest_ms']:.2f} ({row['bare_longest_ms']:.2f})"
    slow = f"{row['slow']} ({row['bare_slow']})"
    launch = f"{row['launch_us']:.1f} ({row['bare_launch_us']:.1f})"
    vcore = row["vcore"] or "none"
    spread = f"{row['least_to_ideal']:.3f}-{row['most_to_ideal']:.3f}"
    control = f"{row['control_to_ideal']:.3f}" if row.get("control_to_ideal") else ""
    return (
        f"{name:26}{vcore:>6}{row['bare_ms']:9.1f}{row['bare_busy']:7.1f}{row['made_ms']:9.1f}"
        f"{row['ideal_ms']:9.1f}{row['to_ideal']:8.3f}{control:>8}{spread:>14}{row['held']:8.1f}{longest:>14}{slow:>8}"
        f"{launch:>13}{row['wall_s']:7.1f}  {'; '.join(row['faults'])}"
    )


def folder() -> Path:
    """Return where the traces are."""
    beside = [parent / FOLDER for parent in Path(__file__).resolve().parents[2:]]
    found = next((each for each in beside if each.is_dir()), beside[0])
    return Path(os.environ.get(VARIABLE) or found)


def open_piece(name: str) -> Piece:
    """Return the piece of that name in the folder, of that file, or pattern:NAME[:SEED]."""
    if name.startswith(PATTERN):
        pattern, _, seed = name.removeprefix(PATTERN).partition(":")
        if seed and not seed.isdecimal():
            raise errors.UsageError(f"seed {seed!r}: must be a whole number, such as 1")
        trace = synthetic.make(pattern, int(seed or 1))
        return Piece(trace, plan.compile_trace(trace))
    path = Path(name) if "/" in name or name.endswith(".gz") else folder() / f"{name}.jsonl.gz"
    if not path.is_file():
        raise errors.UsageError(
            f"trace {name!r}: must be a file, the name of one in {folder()} ({VARIABLE}), or "
            f"{PATTERN}NAME, such as {PATTERN}training"
        )
    trace = launchtrace.read(path)
    return Piece(trace, plan.compile_trace(trace))


def main() -> int:
    """Play and show; 1 if a share was not kept or an order changed."""
    options = _parse_options()
    console = Console(stderr=options.json, width=150)
    try:
        law = _law(options)
        recorded = sorted(path.name[:-9] for path in folder().glob("*.jsonl.gz"))
        own = [f"{PATTERN}{name}" for name in synthetic.names()]
        names = options.traces or [*own, *recorded]
        with tempfile.TemporaryDirectory() as cache:
            player = Player(law, Path(cache))
            rows = _run(names, player, options, console)
            if options.record:
                options.pair, options.vcores = True, PAIRS
                rows += _run(names, player, options, console)
    except (errors.PyVgpuError, OSError) as exc:
        print(f"replay: {exc}", file=sys.stderr)
        return 70
    if options.record:
        host.keep(host.stamped({"law": str(law), "rows": [brief(row) for row in rows]}), "replay")
    if options.json:
        print(json.dumps({"law": str(law), "rows": rows}, indent=1))
    return 1 if any(row["faults"] for row in rows) else 0


def brief(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a row."""
    return {
        key: round(row[key], 3) if type(row[key]) is float else row[key]
        for key in RECORDED
        if key in row
    }


def _run(
    names: Sequence[str], player: Player, options: argparse.Namespace, console: Console
) -> list[dict[str, Any]]:
    console.print(heading(), highlight=False)
    rows: list[dict[str, Any]] = []

    def add(play: Callable[[], list[dict[str, Any]]]) -> None:
        found = middle([play() for _ in range(options.runs)])
        rows.extend(found)
        for row in found:
            console.print(line(row), highlight=False, soft_wrap=True)

    pieces = [open_piece(name) for name in names]
    if options.pair:
        for left, right in zip(pieces[::2], pieces[1::2] or pieces, strict=False):
            for vcores in options.vcores:
                seconds = options.seconds or PAIR_SECONDS
                add(functools.partial(pair, player, (left, right), vcores, seconds))
        return rows
    for piece in pieces:
        times = player.repeats(piece, options.seconds or ALONE_SECONDS)
        for vcore in (None, *options.vcores):
            add(functools.partial(alone, player, piece, vcore, times))
    return rows


def _law(options: argparse.Namespace) -> laws.Law:
    name, _, seed = options.law.partition(":")
    if name == "seed" and seed.isdecimal():
        return laws.draw(int(seed))
    return laws.named(name)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replay recorded launches under shares.")
    add = parser.add_argument
    add("traces", nargs="*", metavar="TRACE", help="files, names in the folder, or pattern:NAME")
    add("--vcore", nargs="+", type=int, metavar="N", help=f"{VCORES}; with --pair two of them")
    add("--pair", action="store_true", help="each trace beside the next one; 30/70 and 50/50")
    add("--seconds", type=float, default=0, metavar="S", help="repeat a trace to last so long")
    add("--law", default="today", help="today, slices, events, drawn or seed:N")
    add(
        "--runs",
        type=int,
        default=1,
        metavar="N",
        help="play each row so often; the median counts",
    )
    add("--json", action="store_true", help="print the whole record")
    add("--record", action="store_true", help="alone and in pairs, recorded")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: must be 1 or more, such as 3")
    vcores = options.vcore or VCORES
    if options.pair:
        options.vcores = [tuple(options.vcore)] if options.vcore else PAIRS
    else:
        options.vcores = vcores
    return options


if __name__ == "__main__":
    sys.exit(main())
