"""Fixtures for shim tests: a quota on a simulated machine, and CUDA programs under it.

A program is a piece of Python that calls the driver API through ctypes, in a process of its own
because a loaded library stays loaded. Tests can run the same piece on the bare driver, to compare
the shim's behaviour with the driver's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import machine_room
from waiting import WHOLE

from pyvgpu import device, names, region, shim
from pyvgpu.run import run_files
from pyvgpu.share import Share
from pyvgpu.volumes import find, mirror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyvgpu.simulation import simulator

MIB = 1 << 20
GIB = 1 << 30

_PACKAGES = re.compile(r"\b(?:import|from) (?:cuda|numpy|pynvml|pyvgpu)\b")

# Tests run thousands of such programs, so modules that few of them use are imported on first use.
PRELUDE = """
import ctypes, os, sys, time
from ctypes import byref
class Later:
    def __init__(self, name):
        self._name = name
    def __getattr__(self, attribute):
        return getattr(__import__(self._name), attribute)
json, threading = Later("json"), Later("threading")
MIB, GIB = 1 << 20, 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")
P, U64, SIZE, INT, UINT = (
    ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint)
def answer(value):
    print(json.dumps(value), flush=True)
def check(result):
    if result:
        raise SystemExit(f"CUDA error {result}")
def context(ordinal=0):
    made = P()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(made), ordinal))
    check(cuda.cuCtxSetCurrent(made))
    return made
def alloc(size):
    pointer = U64()
    result = cuda.cuMemAlloc_v2(byref(pointer), SIZE(size))
    return result, pointer
def free(pointer):
    return cuda.cuMemFree_v2(pointer)
def info():
    available, total = SIZE(), SIZE()
    check(cuda.cuMemGetInfo_v2(byref(available), byref(total)))
    return available.value, total.value
def available():
    return info()[0]
"""


class Room:
    """A quota on devices of a machine, and the run tree that applies it to programs."""

    def __init__(
        self,
        place: Path,
        machine: simulator.Machine,
        vmemory: int = 2 * GIB,
        ordinals: tuple[int, ...] = (0,),
        driver: find.Driver | None = None,
        vcore: int = 100,
    ) -> None:
        self.machine = machine
        self.vcore = vcore
        self.driver = driver or find.find_driver(shim.simulator_libraries())
        self.devices = [device.simulated(machine)[i] for i in ordinals]
        self.folder = place / "region"
        self.folder.mkdir(parents=True)
        handle = os.open(self.folder, os.O_RDONLY)
        self.quota = region.create(handle, self.driver.release, self._shares(vmemory))
        os.close(handle)
        made = mirror.ensure(self.driver, shim.shim_library(), place / "cache")
        source = run_files.RunSource(made.lib64, made.origin, machine.folder)
        self.tree, self._lock = run_files.make(place / "cache", "room", source, self.folder)

    def _shares(self, vmemory: int) -> list[Share]:
        return [Share(each, self.vcore, vmemory) for each in self.devices]

    @property
    def reserve(self) -> int:
        """Bytes charged for a context."""
        return self.devices[0].context_bytes

    def set_vmemory(self, vmemory: int) -> None:
        region.update(self.quota, self.driver.release, self._shares(vmemory))

    def usage(self) -> region.Usage:
        file = os.open(self.folder / names.USAGE_FILE, os.O_RDONLY)
        try:
            return region.read_usage(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """End as a supervisor does: release the lock on the quota."""
        if self.quota >= 0:
            os.close(self.quota)
            os.close(self._lock)
        self.quota = -1

    def environment(self) -> dict[str, str]:
        return {**_clean(self.machine), "LD_LIBRARY_PATH": str(self.tree / "lib64")}

    def start(self, source: str, *arguments: object, **options) -> subprocess.Popen[str]:
        """Start *source*."""
        return _start(self.environment(), source, arguments, options)

    def ask(self, source: str, *arguments: object, env: dict[str, str] | None = None):
        """Run *source* under the quota; return the value that it passed to answer()."""
        return _ask({**self.environment(), **(env or {})}, source, arguments)

    def complain(self, source: str) -> tuple[object, list[str]]:
        """Run *source*; return its answer and its lines on stderr."""
        done = subprocess.run(
            _command(source),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=WHOLE,
            check=True,
        )
        return json.loads(done.stdout), done.stderr.splitlines()


def ask_bare(machine: simulator.Machine, source: str, *arguments: object):
    """Run *source* on the machine's own driver, with no shim."""
    return _ask(bare_environment(machine), source, arguments)


def started_bare(machine: simulator.Machine, source: str) -> subprocess.Popen[str]:
    """Start *source* on the machine's own driver, with no shim."""
    return _start(bare_environment(machine), source, (), {})


def bare_environment(machine: simulator.Machine) -> dict[str, str]:
    """Return the environment in which a program loads the machine's own driver."""
    return {**_clean(machine), "LD_LIBRARY_PATH": str(machine_room.driver_folder(machine))}


@contextlib.contextmanager
def room(place: Path, machine: simulator.Machine, **options) -> Iterator[Room]:
    """Provide a room for the length of the block."""
    made = Room(place, machine, **options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def busy(made: Room) -> Iterator[int]:
    """Run a process under the quota with a minute of GPU work; yield its pid."""
    with made.start(machine_room.HOLDER, 0, 0, machine_room.MINUTE_NS) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        yield program.pid
        program.kill()


def _clean(machine: simulator.Machine) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYVGPU_", "CUDA_"))}
    return {**kept, **machine.environment}


def _command(source: str) -> list[str]:
    """Return the command of a program; without packages a Python starts in half the time."""
    flags = () if _PACKAGES.search(source) else ("-S",)
    return [sys.executable, *flags, "-c", PRELUDE + source]


def _start(environment, source, arguments, options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_command(source), *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def _ask(environment, source, arguments):
    with _start(environment, source, arguments, {"stderr": subprocess.PIPE}) as process:
        try:
            output, errors = process.communicate(timeout=WHOLE)
        finally:
            process.kill()  # do not wait for a hung process
    assert process.returncode == 0, f"ended with {process.returncode}: {output}{errors}"
    return json.loads(output)
