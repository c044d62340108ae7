"""Memory that no call requests by size is measured, and counted like a charge."""

import json

import pytest
import waiting

from .conftest import reservation_folders

pytestmark = pytest.mark.slow

PRELUDE = """
import ctypes, json, os, sys, time
from ctypes import byref
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    if result:
        raise SystemExit(f"CUDA error {result}")
def available():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value
def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("it never came to be")
        time.sleep(0.02)
context, module, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
ptx = b'''.version 8.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 big[536870912];
.visible .entry nop() { ret; }
'''
"""

COUNTED = """
before = available()
check(cuda.cuModuleLoadData(byref(module), ptx))
wait_until(lambda: available() == before - 512 * MIB)
refused = cuda.cuMemAlloc_v2(byref(pointer), ctypes.c_size_t(before - 256 * MIB))
fits = cuda.cuMemAlloc_v2(byref(pointer), ctypes.c_size_t(before - 768 * MIB))
check(cuda.cuMemFree_v2(pointer))
check(cuda.cuModuleUnload(module))
wait_until(lambda: available() == before)
print(json.dumps([refused, fits]))
"""


def test_the_variables_of_a_module_are_counted(runner):
    ran = runner("--vmemory", "2GiB", "python3", "-c", PRELUDE + COUNTED)
    assert ran.stderr.count("error") == 0, ran.stderr
    assert json.loads(ran.stdout) == [2, 0]


DAMAGED = """
whole = available()
(usage,) = {line.split()[-1] for line in open("/proc/self/maps") if line.endswith("/usage\\n")}
with open(usage, "rb") as file:
    content = file.read()
os.truncate(usage, 100)
print("damaged", flush=True)
sys.stdin.readline()
with open(usage, "r+b") as file:
    file.write(content)
wait_until(lambda: available() == whole)
"""


def test_a_usage_file_is_read_again_after_damage_is_repaired(runner, name):
    program = PRELUDE + DAMAGED + COUNTED
    options = ("--name", name, "--vmemory", "2GiB")
    with runner.started(*options, "python3", "-c", program) as ran:
        assert ran.stdout.readline() == "damaged\n"
        (folder,) = reservation_folders(name)
        waiting.wait_until(lambda: (folder / "tampered").exists())
        assert "usage: is too short" in runner.listed(name)["tampered"]
        output, _ = ran.communicate("\n", timeout=60)
    assert json.loads(output) == [2, 0]


SHOWN = """
before = available()
check(cuda.cuModuleLoadData(byref(module), ptx))
wait_until(lambda: available() == before - 512 * MIB)
print(json.dumps(2048 * MIB - available()), flush=True)
sys.stdin.readline()
"""


def test_other_processes_see_the_measured_memory(runner, name):
    options = ("--name", name, "--vmemory", "2GiB")
    with runner.started(*options, "python3", "-c", PRELUDE + SHOWN) as ran:
        used = int(ran.stdout.readline())
        found = runner.listed(name)
        ran.communicate("\n", timeout=60)
    (process,) = found["processes"]
    assert found["held_bytes"] == process["held"] == used
