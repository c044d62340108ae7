"""The records of `make bench-claims` and `make bench-claim-pods` as figures with their goals."""

from __future__ import annotations

from typing import Any

from goals import Beside, Figure
from percentiles import percentile

WAYS = ("claim", "counters", "bare")  # how a pod has its device; the last has none
SLOWER = 0.1  # of a pod's time with counters: most additional time with a claim


def figures(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record of `make bench-claims`."""

    def taken(name: str, part: int, side: str = "driver") -> float:
        return float(1e3 * percentile(record[name][side], part))

    def figure(title: str, name: str, part: int, goal: float) -> Figure:
        nothing = Beside(taken(name, part, "nothing"))
        return Figure(title, taken(name, part), goal, "ms", nothing)

    return [
        figure("NodePrepareResources of one claim, p50", "one", 50, 10),
        figure("NodePrepareResources of one claim, p99", "one", 99, 20),
        figure("the last of 20 at once, p50", "many", 50, 100),
        figure("the last of 20 at once, p99", "many", 99, 100),
    ]


def of_pods(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record of `make bench-claim-pods`."""

    def taken(way: str, key: str, part: int) -> float:
        return percentile([pod[key] for pod in record["pods"][way]], part)

    def figure(title: str, key: str, part: int) -> Figure:
        counters = taken("counters", key, part)
        beside = Beside(
            counters, f"without a device {taken('bare', key, part):.2f} s, by counters"
        )
        goal = round(SLOWER * counters, 3)
        return Figure(title, taken("claim", key, part), goal, "s", beside, adds=True)

    return [
        figure("a pod from its creation until its container has started, p50", "started", 50),
        figure("the same, p90", "started", 90),
        figure("until the API server shows it as running, p50", "running", 50),
        figure("the same, p90", "running", 90),
    ]
