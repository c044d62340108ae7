"""Settings of all tests: default signals, readable files, no leftover threads, no skips in CI."""

import os
import signal
import threading
from pathlib import Path

import debian
import hypothesis
import pure
import pytest
import rights
import waiting

from pyvgpu import shim

pure.prefer()

# A machine that stalls for seconds must fail no property by a deadline or a health check.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser):
    """Add ``--shim``: another build of the shim, such as one that checks its locks."""
    parser.addoption("--shim", type=Path, metavar="FILE", help="use this build of the shim")


def pytest_configure(config):
    """Start programs under test with default signals, and create readable files.

    A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and a shell script
    cannot trap a signal that was ignored at its start. An empty handler is reset by exec, and
    keeps this process alive. Some tests act as a second user, who must be able to read files.
    """
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if (given := config.getoption("--shim")) is not None:
        other = given.resolve(strict=True)
        shim.shim_library = lambda: other


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test(request):
    """Wait for a test's threads: in the next test they would draw random numbers, log and count.

    This fixture is set up first, so it is torn down after the fixtures that end the threads.
    Watches of a real API server end later; e2e tests are exempt.
    """
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker("e2e"):
        return
    ours = [
        thread
        for thread in threading.enumerate()
        if thread not in before and acts_by_itself(thread)
    ]
    waiting.wait_until(
        lambda: not any(our.is_alive() for our in ours),
        found=lambda: f"left running: {[our for our in ours if our.is_alive()]}",
    )


def acts_by_itself(thread):
    """Return whether a thread acts without being asked.

    An executor's thread waits for work; a thread of a server, which several tests may share, waits
    for the next request on its connection.
    """
    runs = getattr(getattr(thread, "_target", None), "__name__", "")
    return runs not in ("_worker", "process_request_thread")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Turn a skip into a failure in CI, except for the lack of a GPU."""
    report = yield
    return report if item.get_closest_marker("gpu") else fail_skips(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Turn the skip of a whole file into a failure in CI."""
    report = yield
    return fail_skips(report)


def fail_skips(report):
    """Turn a skip into a failure in CI: a laptop may lack a tool, CI installs it.

    Excused are privileges, which depend on how CI's container is run, and packages that Debian's
    archive lacks.
    """
    reason = str(report.longrepr)
    excused = rights.WANTING in reason or debian.WANTING in reason
    if report.skipped and "CI" in os.environ and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {reason}"
    return report


@pytest.fixture
def small():
    """A fake API server and a connection to it."""
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client")
    import small_api

    with small_api.running() as made:
        yield made
