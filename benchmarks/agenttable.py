"""The record of `make bench-agent` as lines, each with its goal, and as the page's table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecartable import Line, percentile, table

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
ALLOCATE_GOALS = {50: 0.7, 99: 2.0}  # ms
START_GOAL = 25.0  # ms that it adds, p99
SCRAPE_GOAL = 20.0  # ms
RESIDENT_GOAL, ANONYMOUS_GOAL = 64, 36  # MiB
IDLE_GOAL, BUSY_GOAL = 0.3, 2.0  # percent of a core


def of_record(path: Path) -> str:
    """Return the table of the record in a file."""
    return table(lines(json.loads(path.read_text())))


def lines(record: dict[str, Any]) -> list[Line]:
    """Return the figures of a record, in their order."""
    found = [_allocate(record["allocate"], part) for part in ALLOCATE_GOALS]
    found.append(_start(record["start"]))
    containers = record["busy"]["containers"]
    scrape = 1e3 * percentile(record["scrape"], 99)
    found.append(_line(f"/metrics of {containers} containers, p99", scrape, "ms", SCRAPE_GOAL))
    for name, size, goal in (
        ("resident", record["busy"]["resident"], RESIDENT_GOAL),
        ("anonymous", record["busy"]["anonymous"], ANONYMOUS_GOAL),
    ):
        found.append(_line(f"{name} memory, the same", size / MIB, "MiB", goal))
    found.append(
        _line("processor, no container, of a core", record["idle"]["percent"], "%", IDLE_GOAL)
    )
    found.append(
        _line(
            f"processor, {containers} containers, of a core",
            record["busy"]["percent"],
            "%",
            BUSY_GOAL,
        )
    )
    return found


def _allocate(took: dict[str, list[float]], part: int) -> Line:
    ours, nothing = (1e3 * percentile(took[name], part) for name in ("agent", "nothing"))
    goal = ALLOCATE_GOALS[part]
    value = f"{ours:.2f} ms, a plugin of nothing {nothing:.2f} ms"
    return Line(f"Allocate, p{part}", value, f"{goal:g} ms", ours <= goal)


def _start(took: dict[str, list[float]]) -> Line:
    ours, nothing = (1e3 * percentile(took[name], 99) for name in ("agent", "nothing"))
    value = f"{ours:.1f} ms, a plugin of nothing {nothing:.1f} ms"
    title = "PreStartContainer of both resources, 20 pods at once, p99"
    return Line(title, value, f"adds {START_GOAL:g} ms", ours - nothing <= START_GOAL)


def _line(title: str, value: float, unit: str, goal: float) -> Line:
    return Line(title, f"{value:.2f} {unit}", f"{goal:g} {unit}", value <= goal)
