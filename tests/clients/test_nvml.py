"""NVML clients under `pyvgpu run` see a device of the quota's size with only our processes."""

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import python_clients
import rights

pytestmark = pytest.mark.slow

MIB = 1 << 20
NO_PERMISSION = 4
GO_CLIENT = Path(__file__).parent / "programs" / "go"
# A quota of 2 GiB; a program holds 512 MiB and a context of 520 MiB.
TOTAL, USED, FREE = 2048 * MIB, 1032 * MIB, 1016 * MIB


@pytest.fixture(
    name="start",
    params=["one namespace", pytest.param("PID namespace", marks=rights.needs_pid_namespace)],
)
def fixture_start(request, held_of_two):
    """Run a command on the second of two devices, with and without a PID namespace of its own."""
    if request.param == "one namespace":
        return held_of_two
    return functools.partial(held_of_two, *rights.PID_NAMESPACE)


@pytest.fixture(name="python")
def fixture_python(start):
    """Run a Python program that holds 512 MiB."""

    def run(source, *arguments):
        command = (sys.executable, "-W", "ignore", "-c", source, 512 * MIB, *arguments)
        return json.loads(start(*command))

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


def test_clients_in_python_see_the_process_and_its_memory(python):
    pid, *lists, summary = python(python_clients.PROCESSES)
    assert lists == [[[pid, USED]]] * 3
    assert summary == [TOTAL // MIB, USED // MIB, 0]


@pytest.fixture(name="go_client", scope="session")
def fixture_go_client(tmp_path_factory):
    if not shutil.which("go"):
        pytest.skip("needs Go")
    program = tmp_path_factory.mktemp("go") / "seen"
    command = ["go", "build", "-mod=readonly", "-o", program, "."]
    subprocess.run(command, cwd=GO_CLIENT, check=True, timeout=500)
    return program


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_go_nvml_sees_one_device_and_our_process(python, go_client):
    (device,) = json.loads(python(python_clients.WHILE_HELD, go_client))
    assert device["Memory"] == [TOTAL, USED, FREE]
    (process,) = device["Processes"]
    assert process["Memory"] == USED
    assert "python" in process["Name"]
    assert (device["Load"], device["Set"]) == (0, NO_PERMISSION)
