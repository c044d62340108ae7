"""The collector continues after temporary failures."""

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin.containers import collector


class Nothing:
    """A grant manager and a backend without anything to collect."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.polls = 0

    def wanted(self):
        return set()

    def collect(self, *_):
        self.polls += 1
        if self.failures:
            raise self.failures.pop(0)

    def fill(self):
        pass


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(errors.UnavailableError("kubelet does not say"), id="kubelet is away"),
        pytest.param(errors.PermissionDeniedError("Read-only file system"), id="a read-only disk"),
        pytest.param(errors.DataError("usage: must be a plain file"), id="an invalid file"),
    ],
)
def test_failing_collection_is_logged_once_and_retried(failure, caplog):
    grant_manager, made = Nothing(failure, failure), Nothing()
    collector.Collector(grant_manager, made).run(lambda _: grant_manager.polls == 3)
    assert made.polls == 1
    assert caplog.messages == [f"garbage collection fails: {failure}"]
