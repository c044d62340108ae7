"""For the tests of the controller and the node part: both, as processes."""

import subprocess

import pytest
import sidecars


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    apply = ["kubectl", "apply", "-f", sidecars.RIGHTS]
    subprocess.run(apply, check=True, capture_output=True)
    made = sidecars.Parts(tmp_path_factory.mktemp("parts"))
    try:
        made.start_controller()
        made.start_node()
        yield made
    finally:
        codes = made.end()
    assert codes == [0, 0]
