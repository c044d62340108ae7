"""An MPS control daemon of a simulated machine, and clients that execute lines."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import checkpoints
import machine_room

from pyvgpu import shim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyvgpu.simulation import simulator

PROGRAM = shim.simulator_libraries() / "nvidia-cuda-mps-control"

CLIENT = """
def attribute(number):
    value = INT()
    check(cuda.cuDeviceGetAttribute(byref(value), number, 0))
    return value.value
def enabled():
    return attribute(133)
def sms():
    return attribute(16)
def allocate(size):
    return cuda.cuMemAlloc_v2(byref(U64()), SIZE(size))
def launch(declaration, *values):
    image = b".version 8.0\\n.target sm_70\\n.address_size 64\\n.visible .entry " + declaration
    name = declaration.partition(b"(")[0]
    module, function = P(), P()
    check(cuda.cuModuleLoadData(byref(module), image + b" { ret; }\\n"))
    check(cuda.cuModuleGetFunction(byref(function), module, name))
    kept = [U64(value) for value in values]
    arguments = (P * len(kept))(*[ctypes.addressof(value) for value in kept])
    return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
def hold(ns, sms):
    return launch(b"sim_hold(.param .u64 a, .param .u64 b)", ns, sms)
def crash():
    launch(b"sim_copy(.param .u64 a, .param .u64 b, .param .u64 c)", 8, 16, 8)
    return cuda.cuCtxSynchronize()
def listed(function):
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = {x.pid: x.usedGpuMemory for x in getattr(pynvml, function)(handle)}
    pynvml.nvmlShutdown()
    return found
def used():
    import pynvml
    pynvml.nvmlInit()
    found = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    pynvml.nvmlShutdown()
    return found
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon in a folder of its own."""

    folder: Path
    machine: simulator.Machine
    options: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **machine_room.environment(self.machine),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folder),
        }

    def start(self) -> None:
        subprocess.run(
            [PROGRAM, "-d", *self.options], env=self.environment, check=True, timeout=60
        )

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM],
            env=self.environment,
            input=f"{command}\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def ask(self, command: str) -> list[str]:
        ran = self.run(command)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    @property
    def pid(self) -> int:
        return int((self.folder / "nvidia-cuda-mps-control.pid").read_text())

    @property
    def server(self) -> int:
        (pid,) = self.ask("get_server_list")
        return int(pid)

    def client(self, **variables: str) -> contextlib.AbstractContextManager[checkpoints.Lines]:
        source = checkpoints.TARGET + CLIENT
        return checkpoints.lines(source, {**self.environment, **variables})


@contextlib.contextmanager
def daemon(machine: simulator.Machine, folder: Path, *options: str) -> Iterator[Daemon]:
    """Run a daemon with these options during the block."""
    made = Daemon(folder, machine, options)
    made.start()
    try:
        yield made
    finally:
        made.run("quit")
        with contextlib.suppress(OSError, ValueError):
            os.kill(made.pid, signal.SIGKILL)
