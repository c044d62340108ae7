"""The page of figures and its pictures are those of the last record."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_page_and_its_pictures_are_of_the_last_record():
    command = [sys.executable, BENCHMARKS / "publish.py", "--check"]
    assert subprocess.run(command).returncode == 0, "run make pictures"
