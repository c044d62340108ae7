"""Runs a program of benchmarks/ at its smallest size, and checks that it prints figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
NUMBER = r"\d[\d,.]*"  # for the patterns of figures


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program of that name to its end."""
    return subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def check(name: str, arguments: tuple[str, ...], figures: str) -> None:
    """Run a program that must print what matches *figures*, and must write no record."""
    before = _records()
    ran = run(name, *arguments)
    assert ran.returncode in (0, 1), ran.stderr  # 1: past a goal, which is for idle machines
    assert "Traceback" not in ran.stderr, ran.stderr
    assert re.search(figures, ran.stdout), (ran.stdout, ran.stderr)
    assert _records() == before


def _records() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (FOLDER / "results").rglob("*.json")}
