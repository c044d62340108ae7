import granted
import pytest

from pyvgpu import simulator
from pyvgpu.deviceplugin import folders


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("h100:2", tmp_path / "machines")


@pytest.fixture
def driver(machine, tmp_path):
    return granted.driver_of(machine, tmp_path / "driver")


@pytest.fixture
def places(tmp_path):
    """The folders of grants of a node."""
    return folders.Folders(tmp_path / "grants", tmp_path / "cdi")
