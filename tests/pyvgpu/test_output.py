"""The command line with output that cannot be written, or encodings that lack characters."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from runner import PYVGPU

COMMANDS = [["--help"], ["run", "--help"], ["doctor"], ["doctor", "--json"]]
# Unbuffered, a write fails; buffered, it is the flush at the end.
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@pytest.mark.slow
@BUFFERED
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_closed_pipe_ends_the_command_silently(arguments, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [PYVGPU, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, "")


@BUFFERED
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_full_disk_gives_a_one_line_error(arguments, unbuffered):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [PYVGPU, *arguments],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 74
    assert ran.stderr == "pyvgpu: standard output: no space left on device\n"


@pytest.mark.parametrize("arguments", [*COMMANDS, ["top", "--once"], ["ps"]], ids=" ".join)
def test_closed_output_gives_a_one_line_error(arguments):
    command = shlex.join([str(PYVGPU), *arguments])
    ran = subprocess.run(
        ["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (74, "pyvgpu: standard output: is closed\n")


@pytest.mark.parametrize("command", ["run", "demo", "doctor"])
def test_unknown_option_names_the_help_of_its_command(command):
    ran = subprocess.run(
        [PYVGPU, command, "--frobnicate"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 64
    assert ran.stderr.startswith(
        f"pyvgpu: unrecognized arguments: --frobnicate; valid would be `pyvgpu {command}"
    )
    assert ran.stderr.endswith(f" (see `pyvgpu {command} --help`)\n")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["replay", "--help"]], ids=" ".join)
def test_any_encoding_can_be_written(arguments, encoding):
    ran = subprocess.run(
        [PYVGPU, *arguments],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in ran.stderr
    assert ran.stdout.decode(encoding)
