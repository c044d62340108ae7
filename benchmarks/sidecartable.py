"""Figures of a `make bench-sidecar` record, each with its goal, and the table for the docs."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from percentiles import percentile

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One figure and its goal."""

    title: str
    value: str
    goal: str = ""
    kept: bool = True
    past: bool = False  # the goal, as is what needs nothing of ours


TITLES = {
    "none": "a pod without a sidecar, alternating with these",
    "stop": "stop, by the node part",
    "swap": "swap, confirmed by the node part",
    "hybrid": "hybrid (1 s of its own, signals ignored)",
    "native": "a native sidecar, alternating with these",
    "swap, alone": "swap, through the API alone",
    "hand, alone": "swapped by hand at the API server's first event, alternating with that",
    "native, alone": "a native sidecar, alternating with that",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """The limit for the slowest of a hundred, in seconds.

    *beside* is a baseline that needs only kubelet, in the same run, to which *grace* is added, the
    sidecars' own time to exit. If the slowest of the baseline miss the goal, it cannot be met:
    then the median is compared with the baseline's median plus ``BEYOND``.
    """

    seconds: float
    beside: str = ""
    grace: float = 0.0


BEYOND = 0.4  # seconds
SIGNAL_GOALS = {
    "stop": Goal(0.3),
    "swap": Goal(0.3, "native"),
    "swap, alone": Goal(1.5, "hand, alone"),
}
TERMINAL_GOALS = {
    "stop": Goal(2, "none"),
    "swap": Goal(2, "none"),
    # Its sidecar ends long after the main container: kubelet lists twice, as for a native one.
    "hybrid": Goal(3, "native", grace=1),
    "swap, alone": Goal(2, "hand, alone"),
}

# Ways in which kubelet ends the sidecar.
_KUBELET_ENDS = frozenset({"swap", "native", "swap, alone", "hand, alone", "native, alone"})


def lines(record: dict[str, Any]) -> list[Line]:
    """Return the figures of a record, in their order."""
    found: list[Line] = []
    latency = record.get("latency", {})
    for way in (title for title in TITLES if title in latency):
        found += _latency(way, latency)
    if "burst" in record:
        found += _burst(record["burst"])
    if "many" in record:
        found += _many(record["many"])
    return found


def of_record(path: Path) -> str:
    """Return the table of the record in a file."""
    return table(lines(json.loads(path.read_text())))


def table(found: list[Line]) -> str:
    """Return them in Markdown."""
    rows = ["| figure | value | goal |", "|---|---:|---|"]
    for line in found:
        goal = line.goal + ("" if line.kept else ", **not kept**")
        goal += " (**missed, as without pyvgpu**)" if line.kept and line.past else ""
        rows.append(f"| {line.title} | {line.value} | {goal} |")
    return "\n".join(rows) + "\n"


def _latency(way: str, latency: dict[str, list[dict[str, float]]]) -> list[Line]:
    found = []
    rows = latency[way]
    for name, what, goals in (
        ("signal", "main's end to the sidecar's", SIGNAL_GOALS),
        ("terminal", "main's end to the pod's, by the API server", TERMINAL_GOALS),
    ):
        if (way, name) == ("none", "signal"):
            continue
        goal = goals.get(way)
        beside = [row[name] for row in latency.get(goal.beside, [])] if goal else []
        found.append(
            _evaluated(f"{TITLES[way]}: {what}", [row[name] for row in rows], goal, beside)
        )
    found += _of_kubelet(way, rows)
    ended = sum(row["succeeded"] for row in rows)
    if ended != len(rows):
        found.append(Line(f"{TITLES[way]}: Succeeded", f"{ended:.0f}", f"{len(rows)}", kept=False))
    return found


def _evaluated(title: str, values: list[float], goal: Goal | None, beside: list[float]) -> Line:
    """Hold the slowest against a goal, or against what is beside it, where that is past it."""
    if goal is None:
        return Line(title, _spread(values))
    slowest, text = percentile(values, 99), f"p99 {goal.seconds:g} s"
    theirs = [seconds + goal.grace for seconds in beside]
    if not theirs or percentile(theirs, 99) <= goal.seconds:
        return Line(title, _spread(values), text, slowest <= goal.seconds)
    text += (
        f"; without pyvgpu p50 {percentile(theirs, 50):.2f} s, p99 {percentile(theirs, 99):.2f} s"
    )
    kept = percentile(values, 50) <= percentile(theirs, 50) + BEYOND
    return Line(title, _spread(values), text, kept, past=slowest > goal.seconds)


def _of_kubelet(way: str, rows: list[dict[str, float]]) -> list[Line]:
    """Return what of it was ours and what kubelet's: its relists, and what follows on them."""
    if any("seen_last" not in row for row in rows):
        return []  # an older record
    found = []
    if written := [row["written"] for row in rows if "written" in row]:
        title = "main's end to the controller's write"
        found.append(Line(f"{TITLES[way]}: {title}", _spread(written)))
    if way in _KUBELET_ENDS:
        before = [row["signal"] - row["seen_first"] for row in rows]
        late = [seconds for seconds in before if seconds > 0]
        rest = [row["signal"] for row, seconds in zip(rows, before, strict=True) if seconds <= 0]
        if rest and late:
            title = f"{TITLES[way]}: the same without a kubelet sync in between"
            found.append(_evaluated(title, rest, SIGNAL_GOALS.get(way), []))
        if late:
            title = (
                "kubelet's sync after main's end to the sidecar's end, where that sync came first"
            )
            found.append(Line(f"{TITLES[way]}: {title}", _spread(late)))
    last = [row["terminal"] - row["seen_last"] for row in rows]
    title = "kubelet's sync after the last end to the pod's end"
    return [*found, Line(f"{TITLES[way]}: {title}", _spread(last))]


def _spread(values: list[float]) -> str:
    p50, p99 = percentile(values, 50), percentile(values, 99)
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s of {len(values)}"


def _burst(burst: dict[str, Any]) -> list[Line]:
    jobs, rate, writes = burst["jobs"], burst["decisions_per_second"], burst["writes_per_pod"]
    return [
        Line(
            f"{jobs:,} Jobs done at once, {burst['real']} of them in real pods: Complete",
            f"{burst['complete']:,}",
            f"{jobs:,}",
            burst["complete"] == jobs,
        ),
        Line("decisions a second, each with its writes", f"{rate:.0f}", "50", rate >= 50),
        Line("writes to a pod, at most", f"{writes}", "2", writes <= 2),
        Line(
            "from the start of the controller to the last pod's end, and to the last Job's",
            f"{burst['seconds_to_the_last_pod']:.1f} s, {burst['seconds_to_the_last_job']:.1f} s",
        ),
    ]


def _many(many: dict[str, Any]) -> list[Line]:
    seconds, resident = many["list_seconds"], many["resident_mib"]
    return [
        Line(
            f"list of {many['pods']:,} pods of {many['bytes_of_one']:,} bytes",
            f"{seconds:.2f} s",
            "3 s",
            seconds < 3,
        ),
        Line(
            "the controller's resident memory with them",
            f"{resident:.0f} MiB",
            "150 MiB",
            resident <= 150,
        ),
    ]
