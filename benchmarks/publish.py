"""`make pictures`: the last record becomes the table and the pictures of docs/performance.md.

benchmarks/publish.py            # write them; needs the `bench` extra
benchmarks/publish.py --check    # 1 if they are not of the last record
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import figures

if TYPE_CHECKING:
    from pictures import Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
CALLS = ROOT / "docs" / "performance-calls.svg"
GOALS = ROOT / "docs" / "performance-goals.svg"
HEADINGS = ("figure", "bare", "shim", "added", "goal")


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    record = last_record()
    rows = read(record)
    page = PAGE.read_text()
    if options.check:
        drawn = all(record.name in path.read_text() for path in (CALLS, GOALS))
        return 0 if drawn and table(rows) in page else 1
    import pictures  # only what draws needs matplotlib

    pictures.draw_calls(rows, CALLS, record.name)
    pictures.draw_goals(rows, GOALS, record.name)
    PAGE.write_text(replace_table(page, table(rows)))
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


if __name__ == "__main__":
    sys.exit(main())
