"""Makes the first calls to the driver that the loader finds; prints the answers as JSON.

It also calls every hooked function with zeros only, before and after the driver has reported that
there is no device, except those in which a driver itself then crashes. A function that the driver
lacks answers None.
"""

import ctypes
import json
import sys

cuda = ctypes.CDLL("libcuda.so.1")
nvml = ctypes.CDLL("libnvidia-ml.so.1")
STARTS = {"cuInit", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"}
CRASHES = {
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeer_ptds",
    "cuMemcpy3DPeerAsync",
    "cuMemcpy3DPeerAsync_ptsz",
}


def call(name):
    library = nvml if name.startswith("nvml") else cuda
    try:
        function = library[name]
    except AttributeError:
        return None
    return function(*(ctypes.c_void_p() for _ in range(10)))


def text(function):
    function.restype = ctypes.c_char_p
    return function(1).decode()


def error_name(code):
    name = ctypes.c_char_p()
    return cuda.cuGetErrorName(code, ctypes.byref(name)), (name.value or b"").decode()


def main():
    hooks = sorted(set(json.load(sys.stdin)) - STARTS - CRASHES)
    answers = {"before": {name: call(name) for name in hooks}}
    version, count = ctypes.c_int(-1), ctypes.c_int(-1)
    answers["cuDriverGetVersion"] = cuda.cuDriverGetVersion(ctypes.byref(version)), version.value
    answers["cuInit with flags"] = cuda.cuInit(1)
    answers["cuInit"] = cuda.cuInit(0)
    answers["cuInit again"] = cuda.cuInit(0)
    answers["cuDeviceGetCount"] = cuda.cuDeviceGetCount(ctypes.byref(count)), count.value
    answers["cuGetErrorName"] = error_name(100)
    answers["nvmlInit_v2"] = nvml.nvmlInit_v2()
    answers["nvmlInit"] = nvml.nvmlInit()
    answers["nvmlInitWithFlags"] = nvml.nvmlInitWithFlags(0)
    answers["nvmlShutdown"] = nvml.nvmlShutdown()
    answers["nvmlErrorString"] = text(nvml.nvmlErrorString)
    answers["after"] = {name: call(name) for name in hooks}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
