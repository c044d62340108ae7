"""Site navigation, built from the first line of each page of docs/.

That line may be `<!-- nav: SECTION, NUMBER -->`: the section is one of SECTIONS, and pages of a
section are sorted by number. The line is not rendered. A page without it is listed under MORE, so
a new page is never left out and no list has to be edited for it.

`<!-- nav: SECTION, NUMBER, search: FACTOR -->` also gives the factor by which the site's search
ranks the page above others.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MORE = "More"
SECTIONS = (
    "Get started",
    "How it works",
    "On one machine",
    "In a cluster",
    "Trouble",
    "Moving here",
    "Reference",
    "Performance",
    "Contributing",
    MORE,
)
BOOSTS = {"Contributing": 0.3, "Performance": 0.5, MORE: 0.2}
LAST = 1000  # the number of a page that gives none
LINE = re.compile(
    r"\A<!-- nav: (?P<section>[^,\n]+?)(?:, (?P<number>\d+))?"
    r"(?:, search: (?P<boost>\d+(?:\.\d+)?))? -->\n+"
)


class NavigationError(ValueError):
    """A page names a navigation section that does not exist."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Place:
    """Position of a page in the navigation."""

    section: int  # the index in SECTIONS
    number: int
    page: str  # its path in docs/


def place(page: str, text: str) -> Place:
    """Return the position of the page *text*; raise NavigationError if its section is unknown."""
    line = LINE.match(text)
    if line is None:
        return Place(SECTIONS.index(MORE), LAST, page)
    section = line["section"]
    if section not in SECTIONS:
        raise NavigationError(
            f"docs/{page}: nav: {section!r}: must be one of {', '.join(SECTIONS)}, "
            f"such as <!-- nav: {SECTIONS[0]}, 10 -->"
        )
    return Place(SECTIONS.index(section), int(line["number"] or LAST), page)


def boost(text: str) -> float:
    """Return the factor by which the search ranks the page *text* above others.

    By default it is 1, and less for sections that few readers search.
    """
    line = LINE.match(text)
    if line is not None and line["boost"]:
        return float(line["boost"])
    return BOOSTS.get(line["section"] if line else MORE, 1.0)


def without_line(text: str) -> str:
    """Return the text of a page without its navigation line."""
    return LINE.sub("", text)


def navigation(pages: Mapping[str, str]) -> list[dict[str, list[str]]]:
    """Return the navigation in the form of mkdocs, from the texts of all pages by path."""
    found: dict[str, list[str]] = {}
    for placed in sorted(place(page, text) for page, text in pages.items()):
        found.setdefault(SECTIONS[placed.section], []).append(placed.page)
    return [{section: pages} for section, pages in found.items()]
