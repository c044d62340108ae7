"""A run that overwrites its own ledger: what it holds is counted all the same, and is marked."""

import json
import subprocess

import waiting
from runner import PYVGPU

PROGRAM = """
import ctypes, os, sys
from ctypes import byref
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(byref(pointer), ctypes.c_size_t(700 * MIB)), flush=True)
sys.stdin.readline()
(usage,) = {line.split()[-1] for line in open("/proc/self/maps") if line.endswith("/usage\\n")}
with open(usage, "r+b") as file:
    file.seek(4096)
    file.write(bytes(os.fstat(file.fileno()).st_size - 4096))
print("zeroed", flush=True)
sys.stdin.readline()
"""


def listed(runner, name):
    said = subprocess.run(
        [PYVGPU, "ps", "--json"], env=runner.environment, capture_output=True, check=True
    )
    (found,) = [run for run in json.loads(said.stdout)["runs"] if run["name"] == name]
    return found


def test_a_ledger_that_its_run_zeroes_is_restored_and_marked(runner, name):
    options = ("--name", name, "--vmemory", "2GiB")
    with runner.started(*options, "python3", "-c", PROGRAM) as ran:
        assert ran.stdout.readline() == "0\n"
        before = listed(runner, name)
        assert before["tampered"] is None
        ran.stdin.write("\n")
        ran.stdin.flush()
        assert ran.stdout.readline() == "zeroed\n"
        waiting.wait_until(lambda: listed(runner, name)["tampered"])
        waiting.wait_until(lambda: listed(runner, name)["held_bytes"] == before["held_bytes"])
        shown = subprocess.run(
            [PYVGPU, "ps"], env=runner.environment, capture_output=True, check=True, text=True
        ).stdout
        assert "# its ledger was changed by something other than the shim" in shown
        ran.communicate("\n", timeout=waiting.WHOLE)
    assert ran.returncode == 0
