"""Who ends grants goes on, whatever is in the way for a while."""

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin import collector


class Nothing:
    """What has grants and folders, and nothing to collect."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.looks = 0

    def wanted(self):
        return set()

    def collect(self, *_):
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)

    def fill(self):
        pass


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(errors.UnavailableError("kubelet does not say"), id="kubelet is away"),
        pytest.param(errors.PermissionDeniedError("Read-only file system"), id="a sick disk"),
        pytest.param(errors.DataError("usage: must be a plain file"), id="a file is none"),
    ],
)
def test_what_is_in_the_way_is_said_once_and_tried_again(failure, caplog):
    granter, made = Nothing(failure, failure), Nothing()
    collector.Collector(granter, made).run(lambda _: granter.looks == 3)
    assert made.looks == 1
    assert caplog.messages == [f"nothing can be collected: {failure}"]
