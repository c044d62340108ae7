"""The record of `make bench-agent` as figures, each with its goal."""

from __future__ import annotations

from typing import Any

from goals import Beside, Figure
from percentiles import percentile

MIB = 1 << 20


def figures(record: dict[str, Any]) -> list[Figure]:
    """Return the figures of a record, in their order."""
    containers = record["busy"]["containers"]

    def taken(name: str, part: int, side: str = "agent") -> float:
        return 1e3 * percentile(record[name][side], part)

    def nothing(name: str, part: int) -> Beside:
        return Beside(taken(name, part, "nothing"))

    def allocate(part: int) -> Figure:
        took, beside = taken("allocate", part), nothing("allocate", part)
        known = "disk" in record["allocate"]  # missing in older records
        disk = Beside(taken("allocate", part, "disk"), "the disk alone") if known else None
        return Figure(f"Allocate, p{part}", took, None, "ms", beside, part=disk)

    def relative() -> list[Figure]:
        if "disk" not in record["allocate"]:  # missing in older records
            return []
        bare = taken("allocate", 99, "nothing") + taken("allocate", 99, "disk")
        title = "Allocate, p99, beside a plugin that does nothing and the disk together"
        return [Figure(title, taken("allocate", 99) / bare, 2, "times")]

    def asked() -> list[Figure]:
        if "asked" not in record:
            return []
        title = "the same, with an API server on this machine"
        return [Figure(title, taken("asked", 99), None, "ms", nothing("asked", 99))]

    def audited() -> list[Figure]:
        if "audited" not in record:  # missing in older records
            return []
        title = f"{containers} containers, of which {record['audited']['holders']} hold memory"
        return [Figure(f"{title}: CPU, of one core", record["audited"]["percent"], 2, "%")]

    def node() -> list[Figure]:
        if "node" not in record:  # missing in older records
            return []
        title = "all programs on a node, resident, shared pages counted once"

        def figure(when: str, load: str) -> Figure:
            parts = {name: size / MIB for name, size in record["node"][when].items()}
            once = parts.pop("once")
            each = Beside(sum(parts.values()), "each by itself")
            return Figure(f"{title}, {load}", once, 200, "MiB", each)

        return [figure("idle", "no container"), figure("busy", f"{containers} containers")]

    return [
        allocate(50),
        allocate(99),
        *relative(),
        Figure(
            "PreStartContainer of both resources, 20 pods at once, p99",
            taken("start", 99),
            25,
            "ms",
            nothing("start", 99),
            adds=True,
        ),
        *asked(),
        Figure(
            f"/metrics of {containers} containers, p99",
            1e3 * percentile(record["scrape"], 99),
            20,
            "ms",
        ),
        Figure("resident memory, the same", record["busy"]["resident"] / MIB, None, "MiB"),
        Figure("anonymous memory, the same", record["busy"]["anonymous"] / MIB, None, "MiB"),
        *node(),
        Figure("no container: CPU, of one core", record["idle"]["percent"], 0.3, "%"),
        Figure(f"{containers} containers: CPU, of one core", record["busy"]["percent"], 2, "%"),
        *audited(),
    ]
