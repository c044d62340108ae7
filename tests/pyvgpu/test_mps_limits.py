"""Limits of MPS clients: numbers of SMs, and memory."""

from pathlib import Path

import pytest

from pyvgpu import errors, quota
from pyvgpu.device import Device
from pyvgpu.machine import mps_limits
from pyvgpu.share import Share

GIB = 1 << 30

FACTS = mps_limits.DeviceFacts(False, (9, 0), 132)
A100 = mps_limits.DeviceFacts(False, (8, 0), 108)


@pytest.mark.parametrize(
    ("vcore", "facts", "percent", "sms"),
    [
        pytest.param(100, FACTS, 100, 132, id="all"),
        pytest.param(1, FACTS, 1, 8, id="the least of Hopper"),
        pytest.param(50, FACTS, 50, 66, id="above no doubtful one"),
        pytest.param(90, FACTS, 90, 118, id="the first behind the doubtful ones"),
        pytest.param(89, FACTS, 51, 66, id="doubtful: 116"),
        pytest.param(30, FACTS, 27, 34, id="doubtful: 38"),
        pytest.param(20, FACTS, 13, 16, id="doubtful: 26"),
        pytest.param(30, A100, 30, 32, id="not on other devices"),
        pytest.param(1, A100, 1, 2, id="the least of others"),
    ],
)
def test_vcore_is_a_percentage_of_the_sms(vcore, facts, percent, sms):
    limit = mps_limits.limit_sms(vcore, facts)
    assert (limit.percent, limit.sms, limit.lowered) == (percent, sms, percent < vcore)


def test_a_device_before_volta_is_refused():
    old = mps_limits.DeviceFacts(False, (6, 1), 20)
    with pytest.raises(errors.UnavailableError, match=r"6\.1; must be at least 7\.0"):
        mps_limits.check_device(old, "device 0")


def test_the_memory_limit_is_not_below_the_quota():
    device = Device("GPU-00000000-0000-0000-0000-000000000001", 0, "H100", 80 * GIB, GIB)
    share = Share(device, 100, 2 * GIB + 1, isolation=quota.Isolation.MPS)
    found = mps_limits.variables(share, mps_limits.limit_sms(100, FACTS), Path("/pipe"))
    assert found == {
        "CUDA_MPS_PIPE_DIRECTORY": "/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2049M",
    }
