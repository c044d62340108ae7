"""NVML's clients under `pyvgpu run`: the quota is the device, and the program sees what it holds.

Lists of processes are the host's, so nothing is said of them here.
"""

import json
import re
import sys
from pathlib import Path

import pytest
import python_clients

MIB = 1 << 20
# 2 GiB in all; 512 MiB and a context of 520 MiB are held.
TOTAL, USED, FREE = 2048 * MIB, 1032 * MIB, 1016 * MIB


@pytest.fixture(name="python")
def fixture_python(held_of_two):
    """Run a program of Python that holds 512 MiB, on the second of two devices."""

    def run(source, *arguments):
        command = (sys.executable, "-W", "ignore", "-c", source, 512 * MIB, *arguments)
        return json.loads(held_of_two(*command))

    return run


def test_nvidia_ml_py_sees_one_device_of_the_quotas_size(python):
    memory, index, code_of_a_second = python(python_clients.NVIDIA_ML_PY)
    assert memory == [[TOTAL, USED, FREE]] * 2
    assert (index, code_of_a_second) == (0, 2)


def test_nvitop_sees_one_device_of_the_quotas_size(python):
    assert python(python_clients.NVITOP) == [
        1,
        1,
        [["pyvgpu simulated H100", TOTAL, USED, FREE, "1032MiB / 2048MiB"]],
    ]


def test_nvitops_table_shows_one_device_of_the_quotas_size(python):
    nvitop = Path(sys.executable).with_name("nvitop")
    table = python(python_clients.WHILE_HELD, nvitop, "--once", "--colorful", "--ascii")
    assert re.findall(r"(\S+) / 2048MiB", table) == ["1032MiB"]
    assert re.findall(r"^\S\s+(\d+)\s.*H100", table, re.MULTILINE) == ["0"]
