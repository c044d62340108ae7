"""`make bench-share`: accuracy of time shares for all kinds of programs.

Every row of rows.py is played with the shim and, as a control, without it: the control must fail
the same check, or the check proves nothing. Every row of patterns.py is a program with a realistic
launch pattern; its control is the same program without a share, to which its figures are ratios.
Where programs have priorities, the figures are ratios to the first alone with its share, and in
the control all priorities are normal.
Rows are played under laws of the device (laws.py): each under today's, some under the others, and
with --full all under all. The exit code is 1 if a claim under today's law was not kept, or if a
control was; see MISSED_FAILS for the others. docs/performance.md explains the figures.

    benchmarks/share.py --quick
    benchmarks/share.py --only "alone: async 280 us" --windows
    benchmarks/share.py --only "30/60" --law slices --law drawn --seed 7
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_environments
import host
import laws
import patterns
import scene_runs
import scores
import share_rows
import verdicts
from rich.console import Console

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

MISSED_FAILS = False  # whether patterns, and rows under other laws, decide the exit code
SHOWN_OVER_TIME = ("settling", "elastic")
SERIES_NS = 20_000_000


class Player:
    """Plays scenes, and caches results of programs alone on a bare device."""

    def __init__(self, cache: Path, *, real_clock: bool) -> None:
        self._cache, self._real = cache, real_clock
        self._alone: dict[tuple[laws.Law, scene_runs.Tenant], scene_runs.Trace] = {}

    def play(self, scene: scene_runs.Scene) -> scene_runs.Trace:
        """Play the scene as it is."""
        return scene_runs.play(dataclasses.replace(scene, real_clock=self._real), self._cache)

    def control(self, scene: scene_runs.Scene) -> scene_runs.Trace:
        """Play the scene without the shim."""
        bare = tuple(dataclasses.replace(t, vcore=None) for t in scene.tenants)
        if len(bare) > 1:
            return self.play(dataclasses.replace(scene, tenants=bare, events=()))
        return self.reference(dataclasses.replace(scene, tenants=bare))

    def reference(self, scene: scene_runs.Scene) -> scene_runs.Trace:
        """Play a scene of one program, once for all that are compared with it."""
        key = scene.law, scene.tenants[0]
        if key not in self._alone:
            self._alone[key] = self.play(scene)
        return self._alone[key]

    def alone(self, tenant: scene_runs.Tenant, law: laws.Law) -> float:
        """Return the share that the program has of a bare device of its own."""
        program = dataclasses.replace(tenant, vcore=None, begin_s=0, end_s=None)
        seconds = (
            share_rows.WARM_S
            + share_rows.WINDOWS * share_rows.window_ns(program) / scene_runs.SECOND_NS
        )
        trace = self.control(scene_runs.Scene((program,), seconds, law=law))
        return scores.of(trace, 0).share(*_after_start(trace))


def _after_start(trace: scene_runs.Trace) -> tuple[float, float]:
    return share_rows.WARM_S * scene_runs.SECOND_NS, trace.at_ns[-1]


def run_row(row: share_rows.Row, law: laws.Law, player: Player) -> dict[str, Any]:
    """Play a row and its control under a law; return what is recorded of it."""
    scene = dataclasses.replace(row.scene, law=law)
    alone = [player.alone(scene.tenants[claim.tenant], law) for claim in row.claims]
    trace = player.play(scene)
    control = player.control(scene)
    parts = list(zip(row.claims, share_rows.dues(row, law), alone, strict=True))
    found = [verdicts.examine(scene, claim, due, trace, each) for claim, due, each in parts]
    bare = [verdicts.examine(scene, claim, due, control, each) for claim, due, each in parts]
    unlimited = all(
        each < claim.expected + share_rows.mean_bound(scene.tenants[claim.tenant], law)
        for claim, _, each in parts
    )
    return {
        "name": row.name,
        "group": row.group,
        "evaluated": row.evaluated,
        "tenants": [dataclasses.asdict(tenant) for tenant in row.scene.tenants],
        "claims": [
            {**dataclasses.asdict(f.claim), **f.figures, "faults": f.faults} for f in found
        ],
        "passed": not any(f.faults for f in found),
        # A program that alone does not want more than its vcore shows nothing without the shim.
        "control_fails": None if unlimited else any(f.faults for f in bare),
        "control": [{**f.figures, "faults": f.faults} for f in bare],
        "series": _series(trace) if row.group in SHOWN_OVER_TIME else None,
        "control_series": _series(control) if row.group in SHOWN_OVER_TIME else None,
        "forced": trace.forced,
    }


def run_pattern(pattern: patterns.Pattern, law: laws.Law, player: Player) -> dict[str, Any]:
    """Play a pattern under a law, and without a share; return what is recorded of both."""
    scene = scene_runs.Scene(
        pattern.tenants, pattern.seconds, law=law, witness_ns=pattern.witness_ns
    )
    limited = player.play(scene)
    bare = player.reference(dataclasses.replace(scene, tenants=pattern.reference))
    control = bare
    if pattern.control is not None:
        control = player.play(dataclasses.replace(scene, tenants=pattern.control))
    found = verdicts.of_pattern(pattern, law, limited, bare, control)
    controls = [f.figures["control_kept"] for f in found if f.claim.shows_limit]
    return {
        "name": pattern.name,
        "group": patterns.GROUP,
        "evaluated": True,
        "tenants": [dataclasses.asdict(tenant) for tenant in pattern.tenants],
        "claims": [
            {**dataclasses.asdict(f.claim), **f.figures, "faults": f.faults} for f in found
        ],
        "passed": not any(f.faults for f in found),
        # A share of almost all, or a bound on the time of a call, shows nothing without the shim.
        "control_fails": not all(controls) if controls else None,
        "said": limited.programs[0][0],
        "control_said": control.programs[0][0],
        "forced": limited.forced,
    }


def _series(trace: scene_runs.Trace) -> list[list[float]]:
    """Return each tenant's share step by step, percent."""
    steps = range(0, trace.at_ns[-1] - SERIES_NS + 1, SERIES_NS)
    tenants = [scores.of(trace, tenant) for tenant in range(len(trace.had_ns))]
    return [[round(had.share(at, at + SERIES_NS), 1) for at in steps] for had in tenants]


def show(line: dict[str, Any], console: Console, *, windows: bool) -> None:
    """Print one row."""
    verdict = "[green]kept" if line["passed"] else "[red bold]NOT KEPT"
    if not line["evaluated"]:
        verdict = "[default]shown, not evaluated"
    elif not line["decides"] and not line["passed"]:
        verdict = "[yellow]missed"
    if line["control_fails"] is False:
        verdict += "[red bold], and the control passes"
    law = "" if line["law"] == laws.TODAY.name else f" ({line['law']})"
    console.print(f"{line['name']}{law}: {verdict}[/] in {line['seconds']:.1f} s", highlight=False)
    for claim in line["claims"]:
        console.print("    " + "; ".join([_words(claim), *claim["faults"]]), highlight=False)
        if windows and "windows" in claim:
            console.print("    " + " ".join(f"{each:.1f}" for each in claim["windows"]))


def _words(claim: dict[str, Any]) -> str:
    if "figure" in claim:
        return (
            f"{claim['figure']}: {claim['value']:.2f}, {patterns.words(claim)}; "
            f"control {claim['control']:.2f}"
        )
    if "mean" in claim:
        return (
            f"{claim['expected']:g}: {claim['mean']:.2f} %, error {claim['mean_error']:.2f}"
            f" of {claim['mean_bound']:.2f}, worst {claim['worst_error']:.2f} of"
            f" {claim['worst_bound']:.2f}, throughput {claim['throughput']:.1f} %"
        )
    settled = claim["settled_ms"]
    return (
        f"{claim['expected']:g} from {claim['at_s']:g} s: settled in "
        f"{'no time that was seen' if settled is None else f'{settled:.0f} ms'} of "
        f"{claim['settled_bound_ms']:.0f}, overshoot {claim['overshoot']:.2f} of "
        f"{claim['overshoot_bound']:.2f}"
    )


def main() -> int:
    """Play, show, record; 1 if a claim that decides was not kept, or its control was."""
    options = _parse_options()
    chosen = [
        row
        for row in (*share_rows.ROWS, *patterns.PATTERNS)
        if all(word in row.name for word in options.only)
    ]
    plan = [(row, law) for row in chosen for law in laws_of(row, options)]
    if options.list:
        print("\n".join(f"{row.name} ({law})" for row, law in plan))
        return 0
    console = Console(stderr=options.json, width=110)
    try:
        known = {name: laws.named(name, options.seed) for name in laws.NAMES}
        for name in dict.fromkeys(name for _, name in plan):
            console.print(str(known[name]), highlight=False)
        with tempfile.TemporaryDirectory() as cache:
            player = Player(Path(cache), real_clock=options.real_clock)
            lines = []
            for row, name in plan:
                lines.append(_run(row, known[name], player))
                show(lines[-1], console, windows=options.windows)
    except (errors.PyVgpuError, OSError) as exc:
        print(f"bench-share: {exc}", file=sys.stderr)
        return 70
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "driver": f"simulated {bench_environments.MODEL}, timed",
        "clock": "real" if options.real_clock else "virtual",
        "machine": host.describe(),
        "laws": {name: dataclasses.asdict(law) for name, law in known.items()},
        "rows": [summary(line) for line in lines if _is_of_today(line)],
        "others": [summary(line) for line in lines if not _is_of_today(line)],
    }
    if options.json:
        print(json.dumps(document, indent=1))
    elif not (options.quick or options.only or options.law):
        host.keep(document, "share", kind=document["clock"])
    return conclude(lines, console)


def conclude(lines: Sequence[dict[str, Any]], console: Console) -> int:
    """Print how many were kept; return the exit code."""
    evaluated = [line for line in lines if line["evaluated"]]
    deciding = [line for line in evaluated if line["decides"]]
    kept = sum(line["passed"] for line in deciding)
    passing = sum(line["control_fails"] is False for line in evaluated)
    missed = [line for line in evaluated if not line["decides"] and not line["passed"]]
    console.print(f"{kept} of {len(deciding)} kept; {passing} controls passed", highlight=False)
    if len(evaluated) > len(deciding):
        console.print(
            f"{len(missed)} of {len(evaluated) - len(deciding)} others missed, and do not count",
            highlight=False,
        )
    console.print(host.remark(), highlight=False)
    wrong = sum(line["control_fails"] is False for line in deciding)
    return 0 if kept == len(deciding) and not wrong else 1


def summary(line: dict[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a row: no windows, and no steps that no picture shows."""
    kept = {**line, "claims": [_without_windows(claim) for claim in line["claims"]]}
    if "control" in line:
        kept["control"] = [_without_windows(claim) for claim in line["control"]]
    if "series" in line and not _is_of_today(line):
        kept["series"] = kept["control_series"] = None
    return kept


def _without_windows(claim: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in claim.items() if key != "windows"}


def _is_of_today(line: dict[str, Any]) -> bool:
    return bool(line["law"] == laws.TODAY.name and line["group"] != patterns.GROUP)


def laws_of(row: share_rows.Row | patterns.Pattern, options: argparse.Namespace) -> Sequence[str]:
    """Return the laws under which the row is tried now."""
    if options.quick and not row.quick:
        return ()
    if options.law:
        return list(options.law)
    if options.full:
        return laws.NAMES
    return row.laws[:1] if options.quick and not row.everywhere else row.laws


def _run(row: share_rows.Row | patterns.Pattern, law: laws.Law, player: Player) -> dict[str, Any]:
    begun = time.monotonic()
    if isinstance(row, patterns.Pattern):
        line = run_pattern(row, law, player)
    else:
        line = run_row(row, law, player)
    line["law"] = law.name
    line["decides"] = MISSED_FAILS or _is_of_today(line)
    line["seconds"] = round(time.monotonic() - begun, 1)
    return line


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure shares of a device's time.")
    add = parser.add_argument
    add("--quick", action="store_true", help="some rows of each group, few under several laws")
    add("--full", action="store_true", help="each row under each law")
    add("--only", action="append", default=[], metavar="WORDS", help="rows with these in the name")
    add("--law", action="append", choices=laws.NAMES, help="under this law alone; may be repeated")
    add(
        "--seed",
        type=int,
        default=secrets.randbelow(2**32),
        help="of the drawn law; drawn, and printed, if left out",
    )
    add("--windows", action="store_true", help="show the share in each window")
    add("--real-clock", action="store_true", help="not the virtual clock; on an idle machine")
    add("--json", action="store_true", help="print the whole record")
    add("--list", action="store_true", help="print the rows and their laws, play nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
