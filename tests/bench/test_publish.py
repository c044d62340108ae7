"""The page of figures and its pictures are those of the last record."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import publish  # noqa: E402


def test_the_page_and_its_pictures_are_of_the_last_record():
    command = [sys.executable, BENCHMARKS / "publish.py", "--check"]
    assert subprocess.run(command).returncode == 0, "run make pictures"


def test_what_stands_around_the_figures_stays():
    page = "before\n<!-- measured -->\n\n<!-- /measured -->\nafter\n"
    for tables in ("| first |\n", "| second |\n"):
        page = publish.replace_between(page, "measured", tables)
        assert page == f"before\n<!-- measured -->\n\n{tables}\n<!-- /measured -->\nafter\n"
