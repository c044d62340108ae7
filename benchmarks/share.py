"""`make bench-share`: whether each container has its share of the device, whatever it runs.

Every row of rows.py is played with the shim and, as a control, without it: the control must fail
the same check, or the check is worth nothing. The exit code is 1 if a claim was not kept, or if a
control was. docs/performance.md explains the figures.

    benchmarks/share.py --quick
    benchmarks/share.py --only "alone: async 280 us" --windows
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import host
import rooms
import rows
import scores
import stage
from rich.console import Console

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

THROUGHPUT = 0.97
SHOWN_OVER_TIME = ("settling", "elastic")
SERIES_NS = 20_000_000
UNUSED_POINTS = 2.0  # a program that uses less than its vcore by so much is not limited by it


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What came of one claim."""

    claim: rows.Kept | rows.Settled
    figures: Mapping[str, object]
    faults: tuple[str, ...]  # what was not kept, a sentence each


class Player:
    """Plays scenes, and remembers what programs do alone on a bare device."""

    def __init__(self, cache: Path, *, real_clock: bool) -> None:
        self._cache, self._real = cache, real_clock
        self._alone: dict[stage.Tenant, stage.Trace] = {}

    def play(self, scene: stage.Scene) -> stage.Trace:
        """Play the scene as it is."""
        return stage.play(dataclasses.replace(scene, real_clock=self._real), self._cache)

    def control(self, scene: stage.Scene) -> stage.Trace:
        """Play the scene without the shim."""
        bare = tuple(dataclasses.replace(t, vcore=None) for t in scene.tenants)
        if len(bare) > 1:
            return self.play(dataclasses.replace(scene, tenants=bare, events=()))
        if bare[0] not in self._alone:
            self._alone[bare[0]] = self.play(dataclasses.replace(scene, tenants=bare))
        return self._alone[bare[0]]

    def alone(self, tenant: stage.Tenant) -> float:
        """Return the share that the program has of a bare device of its own."""
        program = dataclasses.replace(tenant, vcore=None, begin_s=0, end_s=None)
        seconds = rows.WARM_S + rows.WINDOWS * rows.window_ns(program) / stage.SECOND_NS
        trace = self.control(stage.Scene((program,), seconds))
        return scores.of(trace, 0).share(*_after_start(trace))


def _after_start(trace: stage.Trace) -> tuple[float, float]:
    return rows.WARM_S * stage.SECOND_NS, trace.at_ns[-1]


def examine(
    row: rows.Row, claim: rows.Kept | rows.Settled, trace: stage.Trace, alone: float
) -> Finding:
    """Hold a trace against a claim; *alone*: what the program has of a bare device."""
    tenant = row.scene.tenants[claim.tenant]
    had = scores.of(trace, claim.tenant)
    if isinstance(claim, rows.Settled):
        return _examine_settling(claim, tenant, had)
    begin = round(rows.WARM_S * stage.SECOND_NS)
    kept = scores.judge(had, claim.expected, begin, trace.at_ns[-1], rows.window_ns(tenant))
    # At its two ends, a piece may have been begun or not.
    piece = 100 * rows.piece_ns(tenant) / (len(kept.windows) * rows.window_ns(tenant))
    least = THROUGHPUT * claim.expected * alone / 100 - piece
    faults = []
    if alone >= claim.expected + UNUSED_POINTS and tenant.kind != "bursty":
        off, worst = kept.mean_error, kept.worst_error
    else:  # it has pauses of its own
        above = [max(0.0, share - claim.expected) for share in kept.windows]
        off, worst = sum(above) / len(above), max(above)
    if off > rows.mean_bound(tenant):
        faults.append(f"off by {off:.2f} points on average, above {rows.mean_bound(tenant):.2f}")
    if worst > rows.worst_bound(tenant):
        faults.append(f"a window off by {worst:.2f}, above {rows.worst_bound(tenant):.2f}")
    if kept.mean < least:
        faults.append(f"has {kept.mean:.2f} %, less than {least:.2f}")
    figures = {
        "mean": kept.mean,
        "mean_error": off,
        "mean_bound": rows.mean_bound(tenant),
        "worst_error": worst,
        "worst_bound": rows.worst_bound(tenant),
        "alone": alone,
        "throughput": 100 * kept.mean / (claim.expected * alone / 100),
        "windows": kept.windows,
    }
    return Finding(claim, figures, tuple(faults))


def _examine_settling(claim: rows.Settled, tenant: stage.Tenant, had: scores.Had) -> Finding:
    found = scores.settle(
        had,
        claim.expected,
        round(claim.at_s * stage.SECOND_NS),
        round(claim.until_s * stage.SECOND_NS),
        rows.settling_window_ns(tenant),
    )
    bound, above = rows.settling_bound_ns(tenant), rows.overshoot_bound(tenant)
    faults = []
    if found.settled_ns is None or found.settled_ns > bound:
        when = "never" if found.settled_ns is None else f"in {found.settled_ns / 1e6:.0f} ms"
        faults.append(f"settles {when}, above {bound / 1e6:.0f} ms")
    if found.overshoot > above and not claim.gives_back:
        faults.append(f"{found.overshoot:.2f} points too much, above {above:.2f}")
    figures = {
        "settled_ms": None if found.settled_ns is None else found.settled_ns / 1e6,
        "settled_bound_ms": bound / 1e6,
        "overshoot": found.overshoot,
        "overshoot_bound": above,
    }
    return Finding(claim, figures, tuple(faults))


def run(row: rows.Row, player: Player) -> dict[str, Any]:
    """Play a row and its control; return what is recorded of it."""
    alone = [player.alone(row.scene.tenants[claim.tenant]) for claim in row.claims]
    trace = player.play(row.scene)
    control = player.control(row.scene)
    pairs = list(zip(row.claims, alone, strict=True))
    found = [examine(row, claim, trace, each) for claim, each in pairs]
    bare = [examine(row, claim, control, each) for claim, each in pairs]
    unlimited = all(
        each < claim.expected + rows.mean_bound(row.scene.tenants[claim.tenant])
        for claim, each in pairs
    )
    return {
        "name": row.name,
        "group": row.group,
        "judged": row.judged,
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


def _series(trace: stage.Trace) -> list[list[float]]:
    """Return each tenant's share step by step, percent."""
    steps = range(0, trace.at_ns[-1] - SERIES_NS + 1, SERIES_NS)
    tenants = [scores.of(trace, tenant) for tenant in range(len(trace.had_ns))]
    return [[round(had.share(at, at + SERIES_NS), 1) for at in steps] for had in tenants]


def show(line: dict[str, Any], console: Console, *, windows: bool) -> None:
    """Print one row."""
    verdict = "[green]kept" if line["passed"] else "[red bold]NOT KEPT"
    if not line["judged"]:
        verdict = "shown, not judged"
    if line["control_fails"] is False:
        verdict += "[red bold], and the control passes"
    console.print(f"{line['name']}: {verdict}", highlight=False)
    for claim in line["claims"]:
        if "mean" in claim:
            text = (
                f"{claim['expected']:g}: {claim['mean']:.2f} %, error {claim['mean_error']:.2f}"
                f" of {claim['mean_bound']:.2f}, worst {claim['worst_error']:.2f} of"
                f" {claim['worst_bound']:.2f}, throughput {claim['throughput']:.1f} %"
            )
        else:
            settled = claim["settled_ms"]
            text = (
                f"{claim['expected']:g} from {claim['at_s']:g} s: settled in "
                f"{'no time that was seen' if settled is None else f'{settled:.0f} ms'} of "
                f"{claim['settled_bound_ms']:.0f}, overshoot {claim['overshoot']:.2f} of "
                f"{claim['overshoot_bound']:.2f}"
            )
        console.print("    " + "; ".join([text, *claim["faults"]]), highlight=False)
        if windows and "windows" in claim:
            console.print("    " + " ".join(f"{each:.1f}" for each in claim["windows"]))


def main() -> int:
    """Play, show, record; 1 if a claim was not kept or a control was."""
    options = _parse_options()
    chosen = [
        row
        for row in rows.ROWS
        if (row.quick or not options.quick) and all(word in row.name for word in options.only)
    ]
    if options.list:
        print("\n".join(row.name for row in chosen))
        return 0
    console = Console(stderr=options.json, width=110)
    try:
        with tempfile.TemporaryDirectory() as cache:
            player = Player(Path(cache), real_clock=options.real_clock)
            lines = _run_all(chosen, player, console, windows=options.windows)
    except (errors.PyVgpuError, OSError) as exc:
        print(f"bench-share: {exc}", file=sys.stderr)
        return 70
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "driver": f"simulated {rooms.MODEL}, timed",
        "clock": "real" if options.real_clock else "virtual",
        "machine": host.describe(),
        "rows": lines,
    }
    if options.json:
        print(json.dumps(document, indent=1))
    elif len(chosen) == len(rows.ROWS):
        host.keep(document, "share", kind=document["clock"])
    judged = [line for line in lines if line["judged"]]
    kept = sum(line["passed"] for line in judged)
    passing = [line["name"] for line in judged if line["control_fails"] is False]
    console.print(f"{kept} of {len(judged)} kept; {len(passing)} controls passed", highlight=False)
    console.print(host.remark(), highlight=False)
    return 0 if kept == len(judged) and not passing else 1


def _run_all(
    chosen: Sequence[rows.Row], player: Player, console: Console, *, windows: bool
) -> list[dict[str, Any]]:
    lines = []
    for row in chosen:
        lines.append(run(row, player))
        show(lines[-1], console, windows=windows)
    return lines


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure shares of a device's time.")
    add = parser.add_argument
    add("--quick", action="store_true", help="some rows of each group")
    add("--only", action="append", default=[], metavar="WORDS", help="rows with these in the name")
    add("--windows", action="store_true", help="show the share in each window")
    add("--real-clock", action="store_true", help="not the virtual clock; on an idle machine")
    add("--json", action="store_true", help="print the whole record")
    add("--list", action="store_true", help="print the names of the rows, play nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
