"""Programs that use NVIDIA's Python libraries, to run under a quota and on the bare driver.

Each is the source of a program that prints one JSON value; its first comment names its arguments.
"""

_BINDINGS = """
import ctypes, json, os, sys
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

BINDINGS_MEMORY = f"""{_BINDINGS}
# Argument: a size. Prints the driver's answers to allocations of it, linear and stream-ordered.
size = int(sys.argv[1])
sizes = [check(driver.cuDeviceGetCount()), check(driver.cuDeviceTotalMem(device)),
         *check(driver.cuMemGetInfo())]
data = os.urandom(3 << 20)
there, other = check(driver.cuMemAlloc(len(data))), check(driver.cuMemAlloc(len(data)))
check(driver.cuMemcpyHtoD(there, data, len(data)))
check(driver.cuMemcpyDtoD(other, there, len(data)))
back = bytearray(len(data))
check(driver.cuMemcpyDtoH(back, other, len(data)))
check(driver.cuMemFree(there))
check(driver.cuMemFree(other))
answers = driver.cuMemAlloc(size), driver.cuMemAllocAsync(size, 0)
print(json.dumps([sizes, bytes(back) == data, [answer[0].name for answer in answers],
                  sizes[2] - check(driver.cuMemGetInfo())[0]]))
"""

BINDINGS_KERNELS = f"""{_BINDINGS}
# Argument: CUBIN or PTX. Runs a kernel unknown to the simulated driver, and its built-in kernels.
kind = sys.argv[1]
source = rb'''
extern "C" __global__ void scale(float *values, float factor, int count)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        values[i] *= factor;
}}
typedef unsigned long long u64;
extern "C" __global__ void sim_fill(u64 at, unsigned value, u64 count) {{}}
extern "C" __global__ void sim_add(u64 out, u64 a, u64 b, u64 count) {{}}
extern "C" __global__ void sim_copy(u64 out, u64 in, u64 bytes) {{}}
'''
attribute = driver.CUdevice_attribute
major = check(driver.cuDeviceGetAttribute(
    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
minor = check(driver.cuDeviceGetAttribute(
    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
architecture = dict(CUBIN="sm", PTX="compute")[kind]
option = f"--gpu-architecture={{architecture}}_{{major}}{{minor}}".encode()
program = check(nvrtc.nvrtcCreateProgram(source, b"k.cu", 0, [], []))
check(nvrtc.nvrtcCompileProgram(program, 1, [option]))
image = b" " * check(getattr(nvrtc, f"nvrtcGet{{kind}}Size")(program))
check(getattr(nvrtc, f"nvrtcGet{{kind}}")(program, image))
module = check(driver.cuModuleLoadData(image))
def launch(name, *arguments):
    function = check(driver.cuModuleGetFunction(module, name))
    values, types = zip(*arguments)
    check(driver.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, 0, (values, types), 0))
    return [check(driver.cuFuncGetParamInfo(function, i)) for i in range(len(arguments))]
U64, U32 = ctypes.c_uint64, ctypes.c_uint32
count = 1000
values = numpy.zeros((5, count), numpy.float32)
values[0] = numpy.arange(count)
start = check(driver.cuMemAlloc(values.nbytes))
row = [int(start) + i * values[0].nbytes for i in range(5)]
check(driver.cuMemcpyHtoD(start, values, values.nbytes))
layout = launch(b"scale", (row[0], ctypes.c_void_p), (2.0, ctypes.c_float), (count, ctypes.c_int))
for to, bits in ((1, 0x3FC00000), (2, 0x40100000)):  # 1.5 and 2.25
    launch(b"sim_fill", (row[to], U64), (bits, U32), (count, U64))
launch(b"sim_add", (row[3], U64), (row[1], U64), (row[2], U64), (count, U64))
launch(b"sim_copy", (row[4], U64), (row[3], U64), (values[0].nbytes, U64))
check(driver.cuCtxSynchronize())
back = numpy.empty_like(values)
check(driver.cuMemcpyDtoH(back, start, back.nbytes))
print(json.dumps([layout, bool((back[0] == values[0]).all()),
                  [sorted({{*each.tolist()}}) for each in back[1:]]]))
"""

NUMBA = """
# Argument: a size. Runs a numba kernel, copies arrays both ways, allocates an array of that size.
import json, sys
import numpy
from numba import cuda
@cuda.jit
def double(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2
values = numpy.arange(4096, dtype=numpy.float64)
memory = cuda.current_context().get_memory_info()
there = cuda.to_device(values)
double[16, 256](there)
cuda.synchronize()
unchanged = bool((there.copy_to_host() == values).all())
try:
    cuda.device_array(int(sys.argv[1]), numpy.uint8)
    beyond = "allocated"
except cuda.cudadrv.driver.CudaAPIError as error:
    beyond = error.code.name
print(json.dumps([cuda.get_current_device().name, memory.total, memory.free, unchanged, beyond]))
"""

_HOLDER = """
import ctypes, json, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))) == 0
"""

NVIDIA_ML_PY = f"""{_HOLDER}
# Argument: bytes to hold. Prints NVML's devices and their memory, by both versions of the query.
import pynvml
pynvml.nvmlInit()
devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
memory = [[each.total, each.used, each.free] for device in devices for each in (
    pynvml.nvmlDeviceGetMemoryInfo(device),
    pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2))]
def code(function, *arguments):
    try:
        function(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    return 0
uuid = pynvml.nvmlDeviceGetUUID(devices[0])
print(json.dumps([memory, pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)),
                  code(pynvml.nvmlDeviceGetHandleByIndex, 1)]))
"""

NVITOP = f"""{_HOLDER}
# Argument: bytes to hold. Prints nvitop's devices and their memory.
import nvitop
devices = nvitop.Device.all()
print(json.dumps([nvitop.Device.count(), nvitop.CudaDevice.count(),
                  [[each.name(), each.memory_total(), each.memory_used(), each.memory_free(),
                    each.memory_usage()] for each in devices]]))
"""

PROCESSES = f"""{_HOLDER}
# Argument: bytes to hold. Prints our pid and the first device's processes by nvidia-ml-py, nvitop
# and gpustat.
import os
import gpustat, nvitop, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
(card,) = gpustat.GPUStatCollection.new_query().gpus
print(json.dumps([
    os.getpid(),
    [[each.pid, each.usedGpuMemory]
     for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)],
    [[pid, each.gpu_memory()] for pid, each in nvitop.Device(0).processes().items()],
    [[each["pid"], each["gpu_memory_usage"] << 20] for each in card.processes],
    [card.memory_total, card.memory_used, card.utilization],
]))
"""

WHILE_HELD = f"""{_HOLDER}
# Arguments: bytes to hold, and a command to run meanwhile. Prints its output as a string.
ran = subprocess.run(sys.argv[2:], capture_output=True, text=True)
assert ran.returncode == 0, ran.stdout + ran.stderr
print(json.dumps(ran.stdout))
"""
