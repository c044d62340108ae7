"""`make pictures`: generates the tables and charts of the docs from the last records.

benchmarks/publish.py            # write them; needs the `bench` extra
benchmarks/publish.py --check    # 1 if they are not of the last record
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agenttable
import claimstable
import clustertable
import controllertable
import figures
import goals
import gputable
import host
import replaytable
import sharetable
import sidecartable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pictures import Row

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
CALLS = DOCS / "performance-calls.svg"
GOALS = DOCS / "performance-goals.svg"
ERRORS = DOCS / "performance-shares.svg"
OVER_TIME = DOCS / "performance-settling.svg"
REPLAYS = DOCS / "performance-replays.svg"
SIDECAR_PAGE = DOCS / "sidecar.md"
MEASURED = "measured"
SUMMARY = "summary"
SHOWN = ("async 280 us", "async 8 ms")  # in the picture over time
HEADINGS = ("figure", "bare", "shim", "added", "goal")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where some of the figures of a page come from: the last record of a kind."""

    figures: Callable[[dict[str, Any]], list[goals.Figure]]
    folder: str
    kind: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """A page with a table of figures that have goals, and its picture of what they use of them."""

    name: str
    sources: tuple[Source, ...]
    drawn: bool = True  # False: none of its figures has a goal

    @property
    def page(self) -> Path:
        """The file with the table in it."""
        return DOCS / f"{self.name}.md"

    @property
    def picture(self) -> Path:
        """The picture beside it."""
        return DOCS / f"{self.name}.svg"

    @property
    def records(self) -> list[Path]:
        """The records that it shows."""
        return [host.last(source.folder, source.kind) for source in self.sources]

    def figures(self) -> list[goals.Figure]:
        """Return all figures, in the order of the table."""
        pairs = zip(self.sources, self.records, strict=True)
        return [figure for source, record in pairs for figure in source.figures(load(record))]

    def shown(self) -> str:
        """Return what stands on the page."""
        picture = f"\n![what each figure uses of its goal]({self.picture.name})\n"
        return f"{goals.table(self.figures())}{picture if self.drawn else ''}"


COSTS = (
    Cost("agent-cost", (Source(agenttable.figures, "agent"),)),
    Cost("cluster-cost", (Source(clustertable.figures, "cluster-load"),), drawn=False),
    Cost(
        "dra-cost",
        (Source(claimstable.figures, "claims"), Source(claimstable.of_pods, "claim-pods")),
    ),
    Cost(
        "scheduler-cost",
        (
            Source(controllertable.of_filter, "scheduler", "filter"),
            Source(controllertable.of_burst, "scheduler", "burst"),
            Source(controllertable.of_webhook, "webhook"),
        ),
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class OnGpus:
    """The page on the records of the GPU kit, and the picture of the last one's shares."""

    folder: Path = gputable.FOLDER
    page: Path = DOCS / "on-real-gpus.md"

    @property
    def picture(self) -> Path:
        """The picture beside it, which is there if a record has shares."""
        return self.page.with_suffix(".svg")

    def is_current(self) -> bool:
        """Return whether page and picture are of the records that are there."""
        found = gputable.records(self.folder)
        page = self.page.read_text()
        if between(page, SUMMARY) != gputable.summary(found):
            return False
        if between(page, MEASURED) != gputable.text(found, self.picture.name):
            return False
        if not gputable.drawn(found):
            return not self.picture.exists()
        return self.picture.exists() and found[0].path.name in self.picture.read_text()

    def write(self) -> None:
        """Make them so, and records as they came from the kit as short as others."""
        found = gputable.records(self.folder)
        for picture in found:
            picture.path.write_text(host.text(load(picture.path)))
        shown = gputable.text(found, self.picture.name)
        page = replace_between(self.page.read_text(), SUMMARY, gputable.summary(found))
        self.page.write_text(replace_between(page, MEASURED, shown))
        self.picture.unlink(missing_ok=True)
        if drawn := gputable.drawn(found):
            import gpupictures

            gpupictures.draw_shares(drawn, self.picture, found[0].path.name)


ON_GPUS = OnGpus()


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    record, shares = host.last(), host.last("share")
    rows, shared = read(record), load(shares)
    replays = host.last("replay")
    replayed = load(replays)
    ends = sidecartable.of_record(host.last("sidecar"))
    page, sidecar_page = PAGE.read_text(), SIDECAR_PAGE.read_text()
    if options.check:
        drawn = [(CALLS, [record]), (GOALS, [record]), (ERRORS, [shares]), (OVER_TIME, [shares])]
        drawn.append((REPLAYS, [replays]))
        drawn += [(cost.picture, cost.records) for cost in COSTS if cost.drawn]
        current = all(named(them) in path.read_text() for path, them in drawn)
        shown = table(rows) in page and sharetable.table(shared) in page and ends in sidecar_page
        shown = shown and replaytable.table(replayed) in page
        costs = all(cost.shown() in cost.page.read_text() for cost in COSTS)
        return 0 if current and shown and costs and ON_GPUS.is_current() else 1
    import goalpictures  # only what draws needs matplotlib
    import pictures
    import replaypictures
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
    replaypictures.draw(replaytable.lines(replayed), REPLAYS, replays.name)
    page = replace_table(page, table(rows))
    page = replace_between(page, "replays", replaytable.table(replayed))
    PAGE.write_text(replace_between(page, "shares", sharetable.table(shared)))
    SIDECAR_PAGE.write_text(replace_between(sidecar_page, MEASURED, ends))
    for cost in COSTS:
        if cost.drawn:
            goalpictures.draw(cost.figures(), cost.picture, named(cost.records))
        replaced = replace_between(cost.page.read_text(), MEASURED, cost.shown())
        cost.page.write_text(replaced)
    ON_GPUS.write()
    return 0


def named(records: Iterable[Path]) -> str:
    """Return what a picture is called by: the records that it shows."""
    return ", ".join(record.name for record in records)


def load(record: Path) -> dict[str, Any]:
    """Return what a record has."""
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def read(record: Path) -> list[Row]:
    """Return the figures of a record, in its order."""
    known = {figure.name: figure for figure in figures.FIGURES}
    return [
        (known[line["name"]], line["bare"], line["shim"], line["added"])
        for line in load(record)["figures"]
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


def between(page: str, mark: str) -> str:
    """Return what stands from a mark to its end."""
    _, rest = page.split(f"<!-- {mark} -->\n\n")
    return rest.split(f"\n<!-- /{mark} -->")[0]


def replace_between(page: str, mark: str, tables: str) -> str:
    """Return the page with what stands from a mark to its end exchanged; both must be there."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{tables}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
