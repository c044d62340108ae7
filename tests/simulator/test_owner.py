"""NVML reports pids of the caller's PID namespace."""

import json
import subprocess
import sys

import rights
from machine_room import ask, environment

from pyvgpu.simulation import simulator

HOLDER = """
import ctypes, os, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
LISTED = """
N.nvmlInit()
d = N.nvmlDeviceGetHandleByIndex(0)
answer([process.pid for process in N.nvmlDeviceGetComputeRunningProcesses(d)])
"""


@rights.needs_pid_namespace
def test_a_process_of_a_container_has_the_nodes_pid_on_the_node(tmp_path):
    machine = simulator.open_machine("h100", tmp_path)
    with subprocess.Popen(
        [*rights.PID_NAMESPACE, sys.executable, "-c", HOLDER],
        env=environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as unshared:
        assert json.loads(unshared.stdout.readline()) == 1
        with open(f"/proc/{unshared.pid}/task/{unshared.pid}/children") as file:  # noqa: PTH123
            child = int(file.read())
        assert ask(machine, LISTED) == [child]
        unshared.stdin.close()
    assert ask(machine, LISTED) == []
