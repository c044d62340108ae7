"""The record of `make bench-sidecar` as lines, each with its goal, and as the page's table."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One figure and what it is held against."""

    title: str
    value: str
    goal: str = ""
    kept: bool = True


TITLES = {
    "stop": "stop, by the node part",
    "swap": "swap, with the node part's word",
    "hybrid": "hybrid (1 s of its own, signals ignored)",
    "native": "a native sidecar, in turn with these",
    "swap, alone": "swap, through the API alone",
    "native, alone": "a native sidecar, in turn with that",
}
SIGNAL_GOALS = {"stop": 0.3, "swap": 0.3, "swap, alone": 1.5}  # seconds, p99
TERMINAL_GOALS = {"stop": 2.0, "swap": 2.0, "hybrid": 2.0 + 1, "swap, alone": 2.0}  # and grace


_KUBELET_ENDS = frozenset({"swap", "native", "swap, alone", "native, alone"})  # the sidecar


def percentile(values: list[float], part: float) -> float:
    """Return the value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(part / 100 * len(ordered)) - 1, 0)]


def lines(record: dict[str, Any]) -> list[Line]:
    """Return the figures of a record, in their order."""
    found: list[Line] = []
    latency = record.get("latency", {})
    for way in (it for it in TITLES if it in latency):
        found += _latency(way, latency[way])
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
        rows.append(f"| {line.title} | {line.value} | {goal} |")
    return "\n".join(rows) + "\n"


def _latency(way: str, rows: list[dict[str, float]]) -> list[Line]:
    found = []
    for name, what, goals in (
        ("signal", "main's end to the sidecar's", SIGNAL_GOALS),
        ("terminal", "main's end to the pod's, as the API server says it", TERMINAL_GOALS),
    ):
        values = [row[name] for row in rows]
        worst = percentile(values, 99)
        goal = goals.get(way)
        found.append(
            Line(
                f"{TITLES[way]}: {what}",
                _spread(values),
                f"p99 {goal:g} s" if goal else "",
                goal is None or worst <= goal,
            )
        )
    found += _of_kubelet(way, rows)
    ended = sum(row["succeeded"] for row in rows)
    if ended != len(rows):
        found.append(Line(f"{TITLES[way]}: Succeeded", f"{ended:.0f}", f"{len(rows)}", kept=False))
    return found


def _of_kubelet(way: str, rows: list[dict[str, float]]) -> list[Line]:
    """Return what of it was ours and what kubelet's: its looks, and what follows on them."""
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
            goal = SIGNAL_GOALS.get(way)
            found.append(
                Line(
                    f"{TITLES[way]}: the same where kubelet had not looked in between",
                    _spread(rest),
                    f"p99 {goal:g} s" if goal else "",
                    goal is None or percentile(rest, 99) <= goal,
                )
            )
        if late:
            title = "kubelet's look at main's end to the sidecar's, where that came first"
            found.append(Line(f"{TITLES[way]}: {title}", _spread(late)))
    last = [row["terminal"] - row["seen_last"] for row in rows]
    title = "kubelet's look at the last end to the pod's"
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
