"""Runs numba-cuda's own driver tests, which come in its wheel, and reports each outcome.

As a program it writes one JSON object that maps a test's id to its outcome: ``passed``,
``failed``, or ``skipped`` with numba's reason. The environment decides which driver it loads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

SUITE = "numba.cuda.tests.cudadrv"
TIMEOUT = 540  # seconds; it takes 30 on two idle cores
LEAST_PASSED = 209


class _Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.outcomes.setdefault(test.id(), "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcomes[test.id()] = f"skipped: {reason}".strip()

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self.outcomes[test.id()] = "failed"

    def addError(self, test: unittest.TestCase, err: object) -> None:
        skipped = type(err[1]).__name__ == "Skipped"  # pytest's, which unittest does not know
        self.outcomes[test.id()] = f"skipped: {err[1]}" if skipped else "failed"

    def addSubTest(self, test: unittest.TestCase, subtest: object, err: object) -> None:
        if err is not None:
            self.outcomes[test.id()] = "failed"


def run(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Run the suite in the working directory *folder*; return the outcomes by id."""
    output = folder / "outcomes.json"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, output],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert output.exists(), f"ended with {done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(output.read_text())


def known_failures() -> dict[str, str]:
    """Return the reasons of known failures on the simulator, by test id."""
    path = Path(__file__).parents[1] / "clients" / "numba_known_failures.txt"
    rows = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {row[0]: row[1] for row in rows if row and row[0] != "#"}


def check(environment: dict[str, str], folder: Path) -> None:
    """Run the suite; assert that exactly the known failures do not pass."""
    outcomes = run(environment, folder)
    known = known_failures()
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    reasons = {
        name: outcome for name, outcome in outcomes.items() if name not in passed | {*known}
    }
    assert not reasons, f"these ended otherwise: {reasons}"
    assert not passed & set(known), "these pass: remove them from the list"
    assert set(known) <= set(outcomes), "these no longer exist: remove them from the list"
    assert len(passed) >= LEAST_PASSED


def _main() -> int:
    result = _Outcomes()
    unittest.defaultTestLoader.loadTestsFromName(SUITE).run(result)
    Path(sys.argv[1]).write_text(json.dumps(result.outcomes))
    os._exit(0)  # leftovers of tests must not delay the exit


if __name__ == "__main__":
    sys.exit(_main())
