"""For all tests: what is skipped on a laptop, for want of a tool or a right, fails in CI."""

import os

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Turn a skip into a failure where everything must be there; a GPU never is."""
    report = yield
    if report.skipped and "CI" in os.environ and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {report.longrepr}"
    return report
