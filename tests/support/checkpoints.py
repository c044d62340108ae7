"""A CUDA program for tests of checkpoints, and a caller that checkpoints other processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import machine_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyvgpu.simulation import simulator

# Executes lines of standard input, each a piece of Python, and prints what it passes to answer().
SERVER = """
import ctypes, json, os, sys, threading, time
from ctypes import byref
cuda = ctypes.CDLL("libcuda.so.1")
P, U64, SIZE, INT, UINT = (
    ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint)
def answer(value):
    print(json.dumps(value), flush=True)
"""
TARGET = """
def check(result):
    if result:
        raise SystemExit(f"CUDA error {result}")
def context(ordinal=0):
    made = P()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(made), ordinal))
    check(cuda.cuCtxSetCurrent(made))
def alloc(size):
    pointer = U64()
    result = cuda.cuMemAlloc_v2(byref(pointer), SIZE(size))
    return pointer.value if result == 0 else None
PATTERN = bytes(range(251)) * 4177
def fill(pointer):
    check(cuda.cuMemcpyHtoD_v2(U64(pointer), PATTERN, SIZE(len(PATTERN))))
def is_intact(pointer):
    back = ctypes.create_string_buffer(len(PATTERN))
    check(cuda.cuMemcpyDtoH_v2(back, U64(pointer), SIZE(len(PATTERN))))
    return back.raw == PATTERN
def multicast():
    made, wanted = U64(), (U64 * 4)(1, 2 << 20, 0, 0)  # of one device, 2 MiB
    check(cuda.cuMulticastCreate(byref(made), wanted))
    return made
def physical(handle_types):
    made, wanted = U64(), (INT * 8)(1, handle_types, 1, 0)  # pinned, on device 0
    check(cuda.cuMemCreate(byref(made), SIZE(2 << 20), wanted, U64(0)))
    return made
def export(memory, handle_type):
    return cuda.cuMemExportToShareableHandle((U64 * 8)(), memory, handle_type, U64(0))
class IpcHandle(ctypes.Structure):  # passed by value
    _fields_ = [("raw", ctypes.c_char * 64)]
def ipc_handle(pointer):
    made = (ctypes.c_char * 64)()
    check(cuda.cuIpcGetMemHandle(made, pointer))
    return list(made.raw)
def open_ipc(raw):
    opened = U64()
    check(cuda.cuIpcOpenMemHandle_v2(byref(opened), IpcHandle.from_buffer_copy(bytes(raw)), 1))
    return opened
def spin(ns):
    image = b".version 8.0\\n.target sm_70\\n.address_size 64\\n" \\
            b".visible .entry sim_spin(.param .u64 ns) { ret; }\\n"
    module, function = P(), P()
    check(cuda.cuModuleLoadData(byref(module), image))
    check(cuda.cuModuleGetFunction(byref(function), module, b"sim_spin"))
    value = U64(ns)
    arguments = (P * 1)(ctypes.addressof(value))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
"""
CALLER = """
def state(pid):
    found = INT(-1)
    result = cuda.cuCheckpointProcessGetState(pid, byref(found))
    return result or f"state {found.value}"
def lock(pid, timeout_ms=0):
    return cuda.cuCheckpointProcessLock(pid, (UINT * 16)(timeout_ms))
def checkpoint(pid):
    return cuda.cuCheckpointProcessCheckpoint(pid, None)
def restore(pid):
    return cuda.cuCheckpointProcessRestore(pid, None)
def unlock(pid):
    return cuda.cuCheckpointProcessUnlock(pid, None)
def free_bytes(ordinal=0):
    import pynvml
    pynvml.nvmlInit()
    found = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(ordinal)).free
    pynvml.nvmlShutdown()
    return found
def pids(ordinal=0):
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(ordinal)
    found = [x.pid for x in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    pynvml.nvmlShutdown()
    return found
"""
LOOP = """
answer("ready")
for line in sys.stdin:
    exec(line)
"""


class Lines:
    """A process that executes lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.answer() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> object:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or '"ended"')

    def ask(self, expression: str) -> object:
        self.send(f"answer({expression})")
        return self.answer()


def process_state(pid: int) -> str:
    """Return the letter of a process's state in /proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def lines(source: str, environment: Mapping[str, str]) -> Iterator[Lines]:
    """Run such a process during the block; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER + source + LOOP],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Lines(process)
    finally:
        process.kill()
        process.communicate()


def target(machine: simulator.Machine) -> contextlib.AbstractContextManager[Lines]:
    """Run a CUDA program on the machine's own driver."""
    return lines(TARGET, machine_room.environment(machine))


def caller(machine: simulator.Machine) -> contextlib.AbstractContextManager[Lines]:
    """Run a program that checkpoints others, and has not called cuInit itself."""
    return lines(CALLER, machine_room.environment(machine))
