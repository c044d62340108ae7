"""Compiles C test programs against plain cuda.h, once per test run."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import machine_room

from pyvgpu import shim

if TYPE_CHECKING:
    from pyvgpu.simulation import simulator

SOURCES = Path(__file__).parents[1] / "simulator" / "programs"
LIBCUDA, LIBNVIDIA_ML = "-l:libcuda.so.999.1", "-l:libnvidia-ml.so.999.1"  # SONAMEs end in .1
_BUILD = Path(__file__).parents[2] / "build"
HEADERS = Path(__file__).parents[2] / "csrc" / "tools" / "headers.py"


@functools.cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="pyvgpu-test-programs-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def _include() -> list[str]:
    done = subprocess.run(
        [sys.executable, str(HEADERS)], capture_output=True, text=True, check=True
    )
    return [f"-I{folder}" for folder in done.stdout.strip().split(";")]


@functools.cache
def build(name: str, sources: tuple[Path, ...], *options: str) -> str:
    """Compile the program *name*, once; *options* follow the sources."""
    output = str(_folder() / name)
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *_include(),
         *map(str, sources), "-o", output, f"-L{shim.simulator_libraries()}", *options],
        check=True,
    )  # fmt: skip
    return output


def build_bare(name: str, source: Path) -> str:
    """Compile a static program that contains the simulated driver, so that no shim can load."""
    tree = next(_BUILD.glob("cp*/csrc/simulator/CMakeFiles"))
    parts = (tree / folder for folder in ("machine.dir", "simulated_cuda.dir"))
    objects = [path for part in parts for path in part.rglob("*.o")]
    assert objects, f"{tree}: make build has left no objects there"
    return build(name, (source, *sorted(objects)), "-static", "-lpthread", "-lrt", "-lm")


def compiled(name: str) -> str:
    """Return the path of the compiled program of that name."""
    return build(name, (SOURCES / f"{name}.c",), LIBCUDA, "-lpthread")


def run(machine: simulator.Machine, name: str, *arguments: str) -> str:
    """Run the program on the machine; return its output."""
    return machine_room.run(machine, compiled(name), *arguments)


def start(machine: simulator.Machine, name: str, *arguments: str) -> subprocess.Popen[str]:
    """Start the program on the machine, and wait until it prints that it is ready."""
    process = subprocess.Popen(
        [compiled(name), *arguments],
        env=machine_room.environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"{name} ended with {process.wait()}"
    return process
