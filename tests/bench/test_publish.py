"""The page of benchmark figures and its pictures are up to date with the last record."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import publish  # noqa: E402


@pytest.mark.slow
def test_page_and_pictures_are_up_to_date():
    command = [sys.executable, BENCHMARKS / "publish.py", "--check"]
    assert subprocess.run(command).returncode == 0, "run make pictures"


def test_text_around_the_figures_is_kept():
    page = "before\n<!-- measured -->\n\n<!-- /measured -->\nafter\n"
    for tables in ("| first |\n", "| second |\n"):
        page = publish.replace_between(page, "measured", tables)
        assert page == f"before\n<!-- measured -->\n\n{tables}\n<!-- /measured -->\nafter\n"
