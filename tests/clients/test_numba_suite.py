"""numba-cuda's own driver tests pass through the shim as on the bare simulator."""

import numba_suite
import pytest
from shim_room import room

from pyvgpu.simulation import simulator

pytestmark = pytest.mark.slow

GIB = 1 << 30


@pytest.mark.timeout(numba_suite.TIMEOUT + 60)
def test_numbas_own_driver_tests_pass_except_known_failures(tmp_path):
    # Little memory, because numba fills half of it; two devices, because some tests need them.
    machine = simulator.open_machine("h100:2", tmp_path / "machines")
    with room(tmp_path / "room", machine, vmemory=2 * GIB, ordinals=(0, 1)) as held:
        assert held.ask("context(); answer(info()[1])") == 2 * GIB
        numba_suite.check(held.environment(), tmp_path)
