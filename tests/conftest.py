"""For all tests: the same signals however they are started, and what may not differ for any."""

import os
import signal
import threading

import debian
import hypothesis
import pure
import pytest
import rights
import waiting

pure.prefer()

# A machine that stalls for seconds makes no example of a property slower, nor a strategy.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_configure():
    """Let the programs under test begin with the default signals, and files be readable.

    A shell starts what is in the background with Ctrl-C ignored, nohup with SIGHUP ignored, and
    who is started so cannot trap it. A handler of ours does not outlive exec, and keeps us alive.
    Some tests act as a second user, whom a private umask would keep from what they make.
    """
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test(request):
    """Wait for the threads of a test: in the next they would draw, log and count what is not its.

    It is the first fixture to be set up, and so ends after what ends them; who watches a real
    API server notices later.
    """
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker("e2e"):
        return
    ours = [it for it in threading.enumerate() if it not in before and acts_by_itself(it)]
    waiting.wait_until(
        lambda: not any(it.is_alive() for it in ours),
        found=lambda: f"left running: {[it for it in ours if it.is_alive()]}",
    )


def acts_by_itself(thread):
    """Tell whether a thread does anything that nobody asks it for.

    One of an executor's waits for work; one of a server's, which may be the server of more tests
    than one, for the next question on its connection.
    """
    runs = getattr(getattr(thread, "_target", None), "__name__", "")
    return runs not in ("_worker", "process_request_thread")


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


@pytest.fixture
def small():
    """A small API server and a connection to it."""
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client")
    import small_api

    with small_api.running() as made:
        yield made
