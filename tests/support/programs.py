"""C programs against plain cuda.h, compiled once for a test run and linked to libcuda.so.1."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import machine_room

if TYPE_CHECKING:
    from pyvgpu import simulator

SOURCES = Path(__file__).parents[1] / "simulator" / "programs"
HEADERS = Path(__file__).parents[2] / "csrc" / "headers.py"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pyvgpu-test-programs-")


@functools.cache
def _include() -> list[str]:
    done = subprocess.run(
        [sys.executable, str(HEADERS)], capture_output=True, text=True, check=True
    )
    return [f"-I{folder}" for folder in done.stdout.strip().split(";")]


@functools.cache
def _compiled(name: str, libraries: Path) -> Path:
    output = Path(_folder().name) / name
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *_include(),
         str(SOURCES / f"{name}.c"), "-o", str(output), f"-L{libraries}",
         "-l:libcuda.so.1", "-lpthread"],
        check=True,
    )  # fmt: skip
    return output


def compiled(name: str, machine: simulator.Machine) -> str:
    """Return the program of that name."""
    return str(_compiled(name, machine_room.driver_folder(machine)))


def run(machine: simulator.Machine, name: str, *arguments: str) -> str:
    """Run the program on the machine and return what it wrote."""
    return machine_room.run(machine, compiled(name, machine), *arguments)


def start(machine: simulator.Machine, name: str, *arguments: str) -> subprocess.Popen[str]:
    """Start the program on the machine and wait until it says that it is ready."""
    process = subprocess.Popen(
        [compiled(name, machine), *arguments],
        env=machine_room.environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"{name} ended with {process.wait()}"
    return process
