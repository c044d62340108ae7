"""For all tests: the same signals however they are started, and no skips in CI."""

import os
import signal

import debian
import pytest
import rights


def pytest_configure():
    """Let the programs under test begin with the default signals.

    A shell starts what is in the background with Ctrl-C ignored, nohup with SIGHUP ignored, and
    who is started so cannot trap it. A handler of ours does not outlive exec, and keeps us alive.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Let a skip fail in CI; a GPU it never has."""
    report = yield
    return report if item.get_closest_marker("gpu") else judge(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Let the skip of a whole file fail there, too."""
    report = yield
    return judge(report)


def judge(report):
    """Turn a skip into a failure: a laptop may lack a tool, CI installs it.

    What the kernel allows is for whoever runs CI's container to say, and what Debian's archive has
    is Debian's.
    """
    reason = str(report.longrepr)
    excused = rights.WANTING in reason or debian.WANTING in reason
    if report.skipped and "CI" in os.environ and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {reason}"
    return report
