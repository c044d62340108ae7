"""Output of replay results: tables with bars, an HTML page, and JSON."""

from __future__ import annotations

import dataclasses
import html
import string
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.replay.compare import JobResult, ReplayedJob
    from pyvgpu.replay.trace import Trace

BAR = 24
_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>What a share of a GPU costs</title>
<style>
body { margin: 2rem auto; max-width: 56rem; padding: 0 1rem; background: #fff; color: #24292f;
       font: 16px/1.5 system-ui, sans-serif; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th { text-align: right; font-weight: 600; }
th, td { border-top: 1px solid #d0d7de; padding: .35rem .6rem .35rem 0; }
td { text-align: right; white-space: nowrap; }
td:last-child { width: 40%; }
svg { display: block; width: 100%; height: 1rem; }
p { color: #57606a; }
</style>
</head>
<body>
<h1>What a share of a GPU costs</h1>
$jobs
<p>$note</p>
</body>
</html>
""")
NOTE = (
    "Replayed on a simulated device from the recorded launches: kernel and host times are as "
    "recorded, waits are those of the replay."
)


def describe(trace: Trace) -> str:
    """Return a one-line summary of a recording."""
    where = f" on {trace.gpu}" if trace.gpu else ""
    steps = f"; {trace.steps} steps" if trace.steps else ""
    busy = 100 * trace.busy_ns() / trace.duration
    return (
        f"{trace.name}: {trace.activities:,} kernels, copies and sets in "
        f"{trace.duration / 1e6:,.1f} ms{where}, busy {busy:.0f} % of the time{steps}"
    )


def headings(jobs: Sequence[ReplayedJob]) -> list[str]:
    """Return the headings of the tables."""
    steps = any(job.trace.steps for job in jobs)
    return ["share", "time", *(["steps/s"] if steps else []), "times", "device", "longest launch"]


def rows(job: ReplayedJob, *, steps: bool) -> list[tuple[list[str], JobResult]]:
    """Return the rows of a job's table, each with its result."""
    named = [("none", job.unlimited)]
    named += [(f"vcore {each.vcore}", each) for each in job.shares]
    if job.beside is not None:
        named[1] = (f"vcore {job.beside.vcore}, alone", job.shares[0])
        named.append((f"vcore {job.beside.vcore}, together", job.beside))
    return [(_cells(name, each, steps=steps), each) for name, each in named]


def _cells(name: str, each: JobResult, *, steps: bool) -> list[str]:
    rate = [f"{each.steps_per_s:.2f}" if each.steps_per_s else ""] if steps else []
    return [
        name,
        f"{each.ms:,.1f} ms",
        *rate,
        f"{each.ratio:.2f}",
        f"{each.held:.0f} %",
        f"{each.longest_launch_ms:.1f} ms",
    ]


def tables(jobs: Sequence[ReplayedJob]) -> list[str | Table]:
    """Return the output for a terminal: a line and a table for each job."""
    shown: list[str | Table] = []
    titles = headings(jobs)
    for job in jobs:
        shown.append(describe(job.trace))
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, title in enumerate(titles):
            table.add_column(title, justify="right" if number else "left", no_wrap=True)
        table.add_column("")
        found = rows(job, steps="steps/s" in titles)
        longest = max(each.ms for _, each in found)
        for cells, each in found:
            table.add_row(*cells, "█" * max(1, round(BAR * each.ms / longest)))
        shown.append(table)
    return shown


def document(jobs: Sequence[ReplayedJob], vcores: Sequence[int]) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "vcores": list(vcores),
        "jobs": [
            {
                "file": job.trace.name,
                "gpu": job.trace.gpu or None,
                "recorded_ms": job.trace.duration / 1e6,
                "activities": job.trace.activities,
                "busy_percent": 100 * job.trace.busy_ns() / job.trace.duration,
                "steps": job.trace.steps or None,
                "unlimited": dataclasses.asdict(job.unlimited),
                "alone": [dataclasses.asdict(each) for each in job.shares],
                "together": dataclasses.asdict(job.beside) if job.beside else None,
            }
            for job in jobs
        ],
    }


def page(jobs: Sequence[ReplayedJob]) -> str:
    """Return the results as one self-contained HTML page."""
    titles = headings(jobs)
    parts = []
    for job in jobs:
        found = rows(job, steps="steps/s" in titles)
        longest = max(each.ms for _, each in found)
        heads = "".join(f"<th>{html.escape(title)}</th>" for title in (*titles, ""))
        lines = "\n".join(
            "<tr>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            + f"<td>{_bar(each.ms / longest)}</td></tr>"
            for cells, each in found
        )
        parts.append(
            f"<h2>{html.escape(describe(job.trace))}</h2>\n<table>\n<tr>{heads}</tr>\n{lines}\n"
            "</table>"
        )
    return _PAGE.substitute(jobs="\n".join(parts), note=html.escape(NOTE))


def _bar(part: float) -> str:
    return (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="presentation">'
        f'<rect width="{100 * part:.1f}" height="10" fill="#0072b2"/></svg>'
    )
