"""`make pictures`: the last records become the tables and the pictures of the docs.

benchmarks/publish.py            # write them; needs the `bench` extra
benchmarks/publish.py --check    # 1 if they are not of the last record
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import agenttable
import figures
import sharetable
import sidecartable

if TYPE_CHECKING:
    from pictures import Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
CALLS = ROOT / "docs" / "performance-calls.svg"
GOALS = ROOT / "docs" / "performance-goals.svg"
ERRORS = ROOT / "docs" / "performance-shares.svg"
OVER_TIME = ROOT / "docs" / "performance-settling.svg"
SHARES = RESULTS / "share"
SIDECAR_PAGE = ROOT / "docs" / "sidecar.md"
SIDECARS = RESULTS / "sidecar"
AGENT_PAGE = ROOT / "docs" / "agent-cost.md"
AGENT = ROOT / "docs" / "agent-cost.svg"
AGENT_SHOWN = f"\n![what each figure uses of its goal]({AGENT.name})\n"
AGENTS = RESULTS / "agent"
SIDECARS_BEGIN = "<!-- measured -->\n\n"
SIDECARS_END = "\n<!-- /measured -->"
SHARES_BEGIN = "<!-- shares -->\n\n"
SHARES_END = "\n<!-- /shares -->"
SHOWN = ("async 280 us", "async 8 ms")  # in the picture over time
HEADINGS = ("figure", "bare", "shim", "added", "goal")


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    record = last_record()
    rows = read(record)
    shares = sharetable.last_record(SHARES)
    shared = json.loads(shares.read_text())
    recorded = any(SIDECARS.glob("*.json"))
    ends = sidecartable.of_record(sharetable.last_record(SIDECARS)) if recorded else ""
    agents = sharetable.last_record(AGENTS) if any(AGENTS.glob("*.json")) else None
    costs = agenttable.of_record(agents) + AGENT_SHOWN if agents else ""
    page, sidecar_page = PAGE.read_text(), SIDECAR_PAGE.read_text()
    agent_page = AGENT_PAGE.read_text()
    if options.check:
        sources = {CALLS: record, GOALS: record, ERRORS: shares, OVER_TIME: shares}
        if agents:
            sources[AGENT] = agents
        drawn = all(source.name in path.read_text() for path, source in sources.items())
        shown = table(rows) in page and sharetable.table(shared) in page and ends in sidecar_page
        return 0 if drawn and shown and costs in agent_page else 1
    import agentpictures  # only what draws needs matplotlib
    import pictures
    import sharepictures

    pictures.draw_calls(rows, CALLS, record.name)
    pictures.draw_goals(rows, GOALS, record.name)
    sharepictures.draw_errors(sharetable.lines(shared), ERRORS, shares.name)
    over_time = [
        row
        for row in shared["rows"]
        if row["series"] and row["name"].endswith(tuple(f": {program}" for program in SHOWN))
    ]
    sharepictures.draw_over_time(over_time, OVER_TIME, shares.name)
    page = replace_table(page, table(rows))
    tables = sharetable.table(shared)
    PAGE.write_text(replace_between(page, SHARES_BEGIN, tables, SHARES_END))
    SIDECAR_PAGE.write_text(replace_between(sidecar_page, SIDECARS_BEGIN, ends, SIDECARS_END))
    if agents:
        found = agenttable.figures(json.loads(agents.read_text()))
        agentpictures.draw(found, AGENT, agents.name)
        AGENT_PAGE.write_text(replace_between(agent_page, SIDECARS_BEGIN, costs, SIDECARS_END))
    return 0


def last_record() -> Path:
    """Return the record with the latest date in it."""
    return max(RESULTS.glob("*.json"), key=lambda path: json.loads(path.read_text())["date"])


def read(record: Path) -> list[Row]:
    """Return the figures of a record, in its order."""
    known = {figure.name: figure for figure in figures.FIGURES}
    return [
        (known[line["name"]], line["bare"], line["shim"], line["added"])
        for line in json.loads(record.read_text())["figures"]
    ]


def table(rows: list[Row]) -> str:
    """Return the table of all figures, in Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---:|---:|---:|---|"]
    for figure, *values in rows:
        cells = [figure.title, *(figure.quantity(value) for value in values)]
        lines.append(f"| {' | '.join([*cells, figure.goal_in_words()])} |")
    return "\n".join(lines) + "\n"


def replace_table(page: str, table: str) -> str:
    """Return the page with its table of figures exchanged."""
    begin = page.index(f"| {HEADINGS[0]} | {HEADINGS[1]} ")
    return page[:begin] + table + page[page.index("\n\n", begin) + 1 :]


def replace_between(page: str, begin: str, tables: str, end: str) -> str:
    """Return the page with what is between two marks exchanged."""
    before, _, rest = page.partition(begin)
    return before + begin + tables + end + rest.partition(end)[2]


if __name__ == "__main__":
    sys.exit(main())
