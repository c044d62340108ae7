"""Each case of docs/sharing-rows.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sharing-rows.md").read_text()
CASES = [line for line in PAGE.splitlines() if line.startswith("| ") and "](" in line]


def shown_by(case):
    """Return the file of each test of a case, and its name."""
    for sentence, link in re.findall(r"\[([^\]]+)\]\((\.\./tests/[^)]+)\)", case.split(" | ")[2]):
        yield DOCS / link, f"test_{sentence.replace(' ', '_')}"


def names_in(path):
    return {each.name for each in ast.parse(path.read_text()).body if hasattr(each, "name")}


def test_page_has_its_parts():
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == [
        "MIG",
        "MPS and time slices",
        "Suspension",
        "Oversubscription",
    ]
    assert len(CASES) > 70


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2:42])
def test_each_case_is_shown_by_tests_that_exist(case):
    found = list(shown_by(case))
    assert found
    for path, name in found:
        assert name in names_in(path)
