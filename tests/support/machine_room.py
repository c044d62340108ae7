"""Fixtures for tests of the simulated driver: machines, programs on them, NVML queries.

Each query runs in a process of its own, because a loaded library stays loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from waiting import WHOLE

from pyvgpu import shim

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.simulation import simulator

NVML_PRELUDE = """
import ctypes, json, os, sys, threading, time
import pynvml as N
def answer(value):
    print(json.dumps(value))
def code(function, *arguments):
    try:
        function(*arguments)
    except N.NVMLError as error:
        return error.value
    return 0
"""

MINUTE_NS = 60_000_000_000

HOLDER = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, size, kernel_ns = map(int, sys.argv[1:])
def check(result):
    if result:
        sys.exit(f"CUDA error {result}")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
if size:
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
if kernel_ns:
    image = b".version 8.0\\n.target sm_70\\n.address_size 64\\n" \\
            b".visible .entry sim_spin(.param .u64 ns) { ret; }\\n"
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), image))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"sim_spin"))
    ns = ctypes.c_uint64(100_000_000)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
    check(cuda.cuCtxSynchronize())
    ns.value = kernel_ns
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
print("ready", flush=True)
sys.stdin.readline()
"""


def driver_folder(machine: simulator.Machine) -> Path:
    """Create a folder beside the machine in which the loader finds the simulated driver."""
    folder = machine.folder.with_name("driver")
    if not folder.exists():
        folder.mkdir()
        for library in shim.simulator_libraries().glob("lib*.so.999.1"):
            (folder / f"{library.name.removesuffix('.999.1')}.1").symlink_to(library)
    return folder


def environment(machine: simulator.Machine) -> dict[str, str]:
    """Return the environment in which a program loads the simulated driver of this machine."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYVGPU_")},
        **machine.environment,
        "LD_LIBRARY_PATH": str(driver_folder(machine)),
        "PYTHONWARNINGS": "ignore",
    }


def run(machine: simulator.Machine, *command: str) -> str:
    """Run a program on the machine; return its output."""
    done = subprocess.run(
        command, env=environment(machine), capture_output=True, text=True, timeout=WHOLE
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def ask(machine: simulator.Machine, source: str, *arguments: str):
    """Run Python with pynvml as N on the machine; return the value that it passed to answer()."""
    return json.loads(run(machine, sys.executable, "-c", NVML_PRELUDE + source, *arguments))


class Holder:
    """A process that holds a context and memory on a device of the machine."""

    def __init__(self, machine: simulator.Machine, device: int, size: int, kernel_ns: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", HOLDER, str(device), str(size), str(kernel_ns)],
            env=environment(machine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.communicate()
            pytest.fail(f"the holder ended with {self._process.returncode}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def end(self) -> None:
        if self._process.returncode is None:
            self._process.communicate("\n", timeout=30)


@contextlib.contextmanager
def holder(machine: simulator.Machine, device: int = 0, size: int = 0, kernel_ns: int = 0):
    """Run a process that holds memory on the machine during the block.

    With *kernel_ns* it has run a kernel for 0.1 s, and then runs one of that length.
    """
    held = Holder(machine, device, size, kernel_ns)
    try:
        yield held
    finally:
        if kernel_ns:
            held.kill()
        held.end()
