"""Fixtures of the tests that need an NVIDIA GPU; without one they are skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyvgpu import device, errors
from pyvgpu.volumes import find

PYVGPU = str(Path(sys.executable).parent / "pyvgpu")


@pytest.fixture(scope="session")
def gpu():
    """Return the first real device."""
    try:
        driver = find.find_driver()
        return device.installed(driver.libnvidia_ml)[0]
    except (errors.PyVgpuError, IndexError) as exc:
        pytest.skip(f"no NVIDIA GPU here: {exc}")


@pytest.fixture
def bare(gpu):
    """Return a function that runs a command without pyvgpu and returns its output lines."""
    return lambda *command: _run(command)


@pytest.fixture
def held(gpu):
    """Return a function that runs a command under a quota and returns its output lines."""
    return lambda vmemory, *command: _run(
        (PYVGPU, "run", "--vmemory", str(vmemory), "--", *command)
    )


@pytest.fixture(scope="session")
def build(gpu, tmp_path_factory):
    """Return a function that compiles a C program of this folder."""
    headers = subprocess.run(
        [sys.executable, Path(__file__).parents[2] / "csrc" / "tools" / "headers.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    def compile_program(name, *options):
        program = tmp_path_factory.mktemp(name) / name
        source = Path(__file__).parent / f"{name}.c"
        subprocess.run(
            ["gcc", "-Wall", "-Werror", f"-I{headers}", source, "-o", program, *options],
            check=True,
        )
        return program

    return compile_program


def _run(command):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_VISIBLE")}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=170,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()
