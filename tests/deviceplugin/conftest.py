"""What the tests of the node agent share: a kubelet on real sockets."""

import tempfile
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet


@pytest.fixture
def kubelet():
    with tempfile.TemporaryDirectory(
        prefix="pyvgpu-kubelet-"
    ) as folder:  # a socket's path is short
        made = FakeKubelet(Path(folder)).start()
        yield made
        made.stop()
