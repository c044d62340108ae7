"""Real clients of the driver API on the bare simulator.

The quick suite runs the same programs through the shim (tests/clients); these tell whose fault
it is if they fail there.
"""

import json
import re
import sys

import numba_suite
import pytest
import python_clients
from machine_room import environment, run

from pyvgpu.simulation import simulator

pytestmark = pytest.mark.clients

GIB = 1 << 30
TOTAL, FREE = 84943044608, 84397785088  # an H100; less a context of 520 MiB


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path)


def python(machine, source, *arguments):
    command = (sys.executable, "-W", "ignore", "-c", source, *map(str, arguments))
    return json.loads(run(machine, *command))


def test_cuda_bindings_copies_there_and_back_unchanged(machine):
    assert python(machine, python_clients.BINDINGS_MEMORY, 2 * GIB) == [
        [1, TOTAL, FREE, TOTAL],
        True,
        ["CUDA_SUCCESS", "CUDA_SUCCESS"],
        4 * GIB,
    ]


@pytest.mark.parametrize("kind", ["CUBIN", "PTX"])
def test_nvrtc_output_is_loaded_and_launched(machine, kind):
    assert python(machine, python_clients.BINDINGS_KERNELS, kind) == [
        [[0, 8], [8, 4], [12, 4]],
        True,
        [[1.5], [2.25], [3.75], [3.75]],
    ]


def test_numba_compiles_launches_and_copies_unchanged(machine):
    assert python(machine, python_clients.NUMBA, 2 * GIB) == [
        "pyvgpu simulated H100",
        TOTAL,
        FREE,
        True,
        "allocated",
    ]


@pytest.mark.timeout(numba_suite.TIMEOUT + 60)
def test_numbas_own_driver_tests_pass_except_known_failures(tmp_path):
    # Little memory, since numba fills half of it; two devices, since some tests need them.
    machine = simulator.open_machine("h100:2", tmp_path)
    conf = machine.folder / "machine.conf"
    conf.write_text(re.sub(r"memory_bytes=\d+", f"memory_bytes={4 << 30}", conf.read_text()))
    numba_suite.check(environment(machine), tmp_path)
