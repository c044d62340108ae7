"""The record of `make bench-cluster-load` as figures, and extrapolated to a larger cluster."""

from __future__ import annotations

from typing import Any

from goals import Figure

LARGE_NODES = 5000
MIB = 1 << 20


def figures(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record, in their order."""
    nodes, pods = record["nodes"], record["pods"]
    idle, churn, compared = record["idle"], record["churn"], record["comparison"]
    start = record["agents_start"]
    found = [
        Figure(f"{nodes} agents start", start["requests"], None, "requests"),
        Figure("the same", start["bytes"] / MIB, None, "MiB"),
        Figure("the same: CPU time of the API server", start["cpu_s"], None, "s"),
    ]
    for title, phase in (
        ("idle", idle),
        (f"{churn['changes'] / churn['seconds']:.1f} pods a second end and start", churn),
        ("the scheduler compares its cache all the time", compared),
    ):
        found += [
            Figure(title, _rate(phase, "requests"), None, "requests a second"),
            Figure(title, _rate(phase, "bytes") / 1024, None, "KiB a second"),
            Figure(f"{title}: API server", 100 * _rate(phase, "cpu_s"), None, "% of a core"),
            Figure(f"{title}: filter, p99", phase["filter_p99_ms"], None, "ms"),
        ]
    found += [
        Figure(f"resident memory: {name}", size, None, "MiB")
        for name, size in record["memory_mib"].items()
    ]
    scale = LARGE_NODES / nodes

    def scaled(name: str) -> float:
        """Return a rate while idle: the API server's own part does not grow with the nodes."""
        alone = _rate(record["alone"], name)
        return alone + scale * (_rate(idle, name) - alone)

    found += [
        Figure(
            f"idle, {LARGE_NODES} nodes and {pods * scale:.0f} pods",
            scaled("requests"),
            None,
            "requests a second",
        ),
        Figure(
            f"idle, {LARGE_NODES} nodes: API server", 100 * scaled("cpu_s"), None, "% of a core"
        ),
        Figure(
            f"all {LARGE_NODES} agents start at once",
            scale * start["requests"],
            None,
            "requests",
        ),
        Figure("the same: CPU time of the API server", scale * start["cpu_s"], None, "s"),
    ]
    return found


def _rate(phase: dict[str, float], name: str) -> float:
    return phase[name] / phase["seconds"]
