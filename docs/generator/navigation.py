"""Where each page of docs/ stands in the navigation, which the page itself says.

Its first line may be `<!-- nav: SECTION, NUMBER -->`: the section is one of SECTIONS, and within
it pages stand by their numbers. Readers of the file never see that line. A page that says nothing
stands under MORE, so that a new page is never left out and no list has to be edited for it.
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
LAST = 1000  # the number of a page that says none
LINE = re.compile(r"\A<!-- nav: (?P<section>[^,\n]+?)(?:, (?P<number>\d+))? -->\n+")


class NavigationError(ValueError):
    """A page says that it stands where nothing stands."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a page stands."""

    section: int  # the index in SECTIONS
    number: int
    page: str  # its path in docs/


def place(page: str, text: str) -> Place:
    """Return where the page of this *text* stands; NavigationError where its section is none."""
    said = LINE.match(text)
    if said is None:
        return Place(SECTIONS.index(MORE), LAST, page)
    section = said["section"]
    if section not in SECTIONS:
        raise NavigationError(
            f"docs/{page}: nav: {section!r}: must be one of {', '.join(SECTIONS)}, "
            f"such as <!-- nav: {SECTIONS[0]}, 10 -->"
        )
    return Place(SECTIONS.index(section), int(said["number"] or LAST), page)


def without_line(text: str) -> str:
    """Return the text of a page without what it says of its place."""
    return LINE.sub("", text)


def navigation(pages: Mapping[str, str]) -> list[dict[str, list[str]]]:
    """Return the navigation as mkdocs has it, of the texts of all pages by their paths."""
    found: dict[str, list[str]] = {}
    for it in sorted(place(page, text) for page, text in pages.items()):
        found.setdefault(SECTIONS[it.section], []).append(it.page)
    return [{section: pages} for section, pages in found.items()]
