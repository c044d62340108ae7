"""Real clients of the driver API on the bare simulator."""

import re
import sys

import numba_suite
import pytest
from machine_room import environment, run

from pyvgpu import simulator

pytest.importorskip("cuda.bindings", reason="the clients extra is not installed")

KERNELS = r"""
extern "C" __global__ void scale(float *values, float factor, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        values[i] *= factor;
}
extern "C" __global__ void sim_fill(unsigned long long at, unsigned value, unsigned long long n) {}
"""

BINDINGS = """
import ctypes, os, sys
import numpy
from cuda.bindings import driver, nvrtc
def check(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
context = check(driver.cuDevicePrimaryCtxRetain(device))
check(driver.cuCtxSetCurrent(context))
"""


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path)


def test_cuda_bindings_copies_there_and_back_unchanged(machine):
    program = """
data = os.urandom(3 << 20)
address = check(driver.cuMemAlloc(len(data)))
other = check(driver.cuMemAlloc(len(data)))
check(driver.cuMemcpyHtoD(address, data, len(data)))
check(driver.cuMemcpyDtoD(other, address, len(data)))
back = bytearray(len(data))
check(driver.cuMemcpyDtoH(back, other, len(data)))
print(bytes(back) == data, int(driver.cuMemAlloc(1 << 40)[0]))
"""
    assert run(machine, sys.executable, "-c", BINDINGS + program).split() == ["True", "2"]


@pytest.mark.parametrize("kind", ["CUBIN", "PTX"])
def test_what_nvrtc_compiles_is_loaded_and_launched(machine, kind):
    program = f"""
major, minor = (check(driver.cuDeviceGetAttribute(
    getattr(driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_" + which), device))
    for which in ("MAJOR", "MINOR"))
arch = {{"CUBIN": "sm", "PTX": "compute"}}["{kind}"]
option = f"--gpu-architecture={{arch}}_{{major}}{{minor}}".encode()
made = check(nvrtc.nvrtcCreateProgram(sys.argv[1].encode(), b"k.cu", 0, [], []))
check(nvrtc.nvrtcCompileProgram(made, 1, [option]))
image = b" " * check(nvrtc.nvrtcGet{kind}Size(made))
check(nvrtc.nvrtcGet{kind}(made, image))
module = check(driver.cuModuleLoadData(image))
scale = check(driver.cuModuleGetFunction(module, b"scale"))
fill = check(driver.cuModuleGetFunction(module, b"sim_fill"))
values = numpy.arange(1000, dtype=numpy.float32)
address = check(driver.cuMemAlloc(values.nbytes))
check(driver.cuMemcpyHtoD(address, values, values.nbytes))
check(driver.cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, 0, (
    (int(address), 2.0, 1000), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int)), 0))
check(driver.cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, 0, (
    (int(address), 7, 10), (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64)), 0))
check(driver.cuCtxSynchronize())
back = numpy.empty_like(values)
check(driver.cuMemcpyDtoH(back, address, back.nbytes))
layout = [check(driver.cuFuncGetParamInfo(scale, i)) for i in range(3)]
print(layout, (back.view(numpy.uint32)[:10] == 7).all(), (back[10:] == values[10:]).all())
"""
    printed = run(machine, sys.executable, "-c", BINDINGS + program, KERNELS)
    assert printed == "[(0, 8), (8, 4), (12, 4)] True True\n"


def test_numba_compiles_launches_and_copies_unchanged(machine):
    program = """
import numpy
from numba import cuda
@cuda.jit
def double(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2
values = numpy.arange(4096, dtype=numpy.float64)
there = cuda.to_device(values)
double[16, 256](there)
cuda.synchronize()
print((there.copy_to_host() == values).all(), cuda.get_current_device().name)
"""
    printed = run(machine, sys.executable, "-W", "ignore", "-c", program)
    assert printed == "True pyvgpu simulated H100\n"


def test_numbas_own_driver_tests_pass_but_for_the_known_ones(tmp_path):
    # Little memory, since numba fills half of it; two devices, since some tests need them.
    machine = simulator.open_machine("h100:2", tmp_path)
    conf = machine.folder / "machine.conf"
    conf.write_text(re.sub(r"memory_bytes=\d+", f"memory_bytes={4 << 30}", conf.read_text()))
    outcomes = numba_suite.run(environment(machine), tmp_path)
    known = numba_suite.known_failures()
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    assert set(outcomes) - passed == set(known)
    assert len(passed) >= 209
