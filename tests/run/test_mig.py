"""Runs on MIG devices of a simulated machine: the quota is one of the instance."""

import json
import subprocess
import sys

import checkpoints
import pytest
from runner import PYVGPU

from pyvgpu import shim
from pyvgpu.simulation import simulator

MIB = 1 << 20
SPEC = "h100:mig=3g.40gb+2g.20gb"

PROGRAM = """
import ctypes, json, os, uuid
import pynvml as N
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert not result, result
check(cuda.cuInit(0))
count, name, size = ctypes.c_int(), ctypes.create_string_buffer(99), ctypes.c_size_t()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
check(cuda.cuDeviceGetName(name, 99, 0))
check(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0))
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
results = [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) for _ in range(5)]
N.nvmlInit()
handle = N.nvmlDeviceGetHandleByIndex(0)
memory = N.nvmlDeviceGetMemoryInfo(handle)
print(json.dumps([count.value, name.value.decode(), size.value, results,
                  N.nvmlDeviceGetCount(), N.nvmlDeviceGetUUID(handle), memory.total, memory.used,
                  [p.pid == os.getpid() for p in N.nvmlDeviceGetComputeRunningProcesses(handle)]]))
"""


@pytest.fixture(name="machine")
def fixture_machine(runner):
    return simulator.open_machine(SPEC, runner.machines)


def ran(runner, machine, *options, program=("true",), installed=False):
    source = ["--simulate", SPEC]
    if installed:
        source = ["--driver-libraries", str(shim.simulator_libraries())]
    command = runner.command()
    return subprocess.run(
        [*command[:2], *source, *options, "--", *program],
        env={**runner.environment, **(machine.environment if installed else {})},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("installed", [False, True], ids=["simulated", "by NVML"])
@pytest.mark.parametrize("by", ["uuid", "place"])
def test_program_has_its_quota_of_the_mig_device(runner, machine, installed, by):
    found = simulator.mig_state(machine).instances[1]
    wanted = found.uuid if by == "uuid" else "0:1"
    done = ran(
        runner,
        machine,
        *("--device", wanted, "--vcore", "50", "--vmemory", "4GiB"),
        program=(sys.executable, "-c", PROGRAM),
        installed=installed,
    )
    assert done.returncode == 0, done.stderr
    count, name, size, results, devices, uuid, total, used, own = json.loads(done.stdout)
    assert (count, name) == (1, f"{machine.devices[0].name} MIG 2g.20gb")
    assert size == total == 4096 * MIB
    assert results == [0, 0, 0, 2, 2], "three GiB and a context are in a quota of four"
    assert (devices, uuid) == (1, found.uuid)
    assert used > 3 << 30
    assert own == [True]


def test_a_run_takes_the_first_mig_device_with_room(runner, machine):
    first = simulator.mig_state(machine).instances[0]
    done = ran(runner, machine, "--vmemory", "4GiB", program=(sys.executable, "-c", PROGRAM))
    assert json.loads(done.stdout)[5] == first.uuid


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        pytest.param(
            ("--device", "0:1", "--vmemory", "30GiB"), 64, "has 19.6GiB; valid would be 20096MiB",
            id="a quota larger than the instance",
        ),
        pytest.param(("--device", "0:7"), 64, "valid: 0:0 (MIG-", id="no such instance"),
        pytest.param(("--device", "0"), 64, "name one of its MIG devices: 0:0, 0:1", id="the GPU"),
    ],
)  # fmt: skip
def test_wrong_device_or_size_is_refused_with_what_is_valid(runner, machine, options, code, said):
    done = ran(runner, machine, *options)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_gpu_without_mig_devices_is_refused_with_how_to_make_one(runner):
    simulator.open_machine("h100:mig=none", runner.machines)
    command = runner.command()
    done = subprocess.run(
        [*command[:2], "--simulate", "h100:mig=none", "--", "true"],
        env=runner.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 69
    assert "it has no MIG devices; `nvidia-smi mig -i 0 -lgip` lists the kinds" in done.stderr


def test_specification_that_is_no_layout_is_refused(runner):
    command = runner.command()
    done = subprocess.run(
        [*command[:2], "--simulate", "t4:mig=1g.5gb", "--", "true"],
        env=runner.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "the model t4 has no MIG; those that have it are a100" in done.stderr


def test_run_on_a_mig_device_is_not_oversubscribed(runner, machine):
    done = ran(runner, machine, "--oversubscribe", "--vmemory", "4GiB")
    assert done.returncode == 69
    assert "--oversubscribe: " in done.stderr
    assert "is a MIG device, whose memory the driver cannot move" in done.stderr


def test_run_on_a_mig_device_is_not_suspended(runner, machine, name):
    source = checkpoints.SERVER + checkpoints.TARGET + checkpoints.LOOP
    options = ("--simulate", SPEC, "--name", name, "--vmemory", "4GiB")
    with runner.started(*options, sys.executable, "-c", source) as process:
        tenant = checkpoints.Lines(process)
        tenant.send("context(); p = alloc(1 << 20); fill(p); answer(p > 0)")
        assert tenant.answer() is True
        done = subprocess.run(
            [PYVGPU, "suspend", name], env=runner.environment, capture_output=True, text=True
        )
        assert done.returncode == 69
        assert "is a MIG device, whose memory the driver cannot move" in done.stderr
        assert tenant.ask("is_intact(p)") is True
