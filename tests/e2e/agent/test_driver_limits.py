"""The driver's own cgroup memory limits are set for containers by the runtime's hook."""

import pytest
import rig
from agents import UNIT, container, said

from pyvgpu.machine import memory_limit

pytestmark = pytest.mark.e2e

QUOTA = 8 * UNIT
LIMIT = QUOTA + memory_limit.MARGIN_BYTES
OWN = {"env": [{"name": "LD_LIBRARY_PATH", "value": "/opt/own"}]}


def test_container_with_its_own_driver_is_limited_before_it_starts(space, agent):
    space.create("pods", rig.pod("p", container("own", 20, 8, **OWN), container("held", 20, 8)))
    ended = space.until("pods", "p", rig.has_ended)
    for name, total in (("own", LIMIT), ("held", QUOTA)):
        found = said(ended, name)
        assert int(found["total"]) == total
        assert int(found["refused"]) == 2
        assert int(found["taken"]) <= total


def test_driver_limit_is_in_the_metrics(space, agent):
    space.create("pods", rig.pod("p", container("a", 20, 8, "exec /stays")))
    space.until("pods", "p", lambda pod: rig.runs(pod, "a"))
    figure = f'driver_limit_bytes{{namespace="{space.name}",pod="p",container="a"'
    shown = [line for line in agent.ask("/metrics").splitlines() if figure in line]
    assert [float(line.split()[-1]) for line in shown] == [LIMIT]
