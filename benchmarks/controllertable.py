"""The records of the scheduler and the webhook as figures, each with its goal."""

from __future__ import annotations

from typing import Any

from goals import Beside, Figure
from percentiles import percentile

ANSWER_MS = 5  # p99 of the API server's requests
ALONE = " 1 at once"
LARGE = "20 containers, 360 kB"  # an unusually large pod


def of_filter(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record of `make bench-filter`."""
    small, large = record["small"], record["large"]
    names = f"{large['nodes']:,} names"
    growth = large["p50_ms"] / small["p50_ms"]
    known = f"{large['nodes']:,} nodes and {large['pods']:,} pods"
    during = record.get("compared")  # records of before it was measured lack it
    compared = f"the same, while the cache is compared with {known}"
    return [
        Figure(f"filter over HTTPS, {names}, p50", large["p50_ms"], 1.5, "ms"),
        Figure(f"filter over HTTPS, {names}, p99", large["p99_ms"], 3, "ms"),
        *([Figure(f"{compared}, p50", during["p50_ms"], 1.5, "ms")] if during else []),
        *([Figure(f"{compared}, p99", during["p99_ms"], 3, "ms")] if during else []),
        Figure(f"p50 of {names}, beside {small['nodes']:,}", growth, 10, "times"),
        Figure(f"memory at most, {known} known", large["peak_mib"], 300, "MiB"),
        Figure(f"until {known} are known", large["start_s"], 30, "s"),
    ]


def of_compiled(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record of `make bench-compiled`."""
    ours, python = record["compiled"], record["python"]
    nodes = f"{record['nodes']:,} nodes"
    found = []
    for name, title in (
        ("evaluate", f"a new shape on {nodes}: where it fits"),
        ("score", f"a new shape on {nodes}: how well"),
        ("names", f"{record['nodes']:,} names, looked up and written"),
    ):
        found += [
            Figure(title, ours[name], None, "ms", Beside(python[name], "as Python")),
            Figure(f"{title}, beside Python", python[name] / ours[name], 5, "times", least=True),
        ]
    if "decode" in ours:  # records of before it was measured lack it
        title = "the numbers of a ledger, without system calls, beside Python"
        ratio = python["decode"] / ours["decode"]
        found.append(Figure(title, ratio, 5, "times", least=True))
    ledger = "reading a ledger of 16 processes on 8 devices, for metrics"
    others = Beside(python["each"], "with a word of each process, as Python")
    return [*found, Figure(ledger, ours["figures"], None, "ms", others)]


def of_burst(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record of `make bench-scheduler`."""
    alone, ours = record["rows"]["alone"], record["rows"]["with us"]
    return [
        Figure(
            f"{ours['pods']:,} pods at once on {record['nodes']:,} nodes: bound",
            ours["per_second"],
            100,
            "a second",
            Beside(alone["per_second"], "kube-scheduler without pyvgpu"),
            least=True,
        )
    ]


def of_webhook(record: dict[str, Any]) -> list[Figure]:
    """Return the figures with goals of a record of `make bench-webhook`: of pods as usual."""
    found = [
        Figure(f"webhook, {title.removesuffix(f',{ALONE}')}, p99", 1e3 * slow, ANSWER_MS, "ms")
        for title, rows in record["answers"].items()
        if title.endswith(ALONE) and LARGE not in title
        for slow in [percentile(rows, 99)]
    ]
    title = f"webhook, {record['nodes']:,} nodes known: memory at most"
    return [*found, Figure(title, record["resident_mib"], 128, "MiB")]
