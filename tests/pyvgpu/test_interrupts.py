"""Ctrl-C while a command loads its modules ends it silently."""

import itertools
import signal
import subprocess
import sys

import pytest

SILENT = (0, 130, -signal.SIGINT)  # 0: the command was done; a shell shows 130 for the others
MOMENTS = 12
COMMANDS = [["ps"], ["doctor"], ["top", "--once"], ["run", "--help"], ["completion", "bash"]]
IMPORTED = "import time:"


def interrupt(command, count):
    """Send SIGINT once the command has imported *count* modules.

    Return its exit code, the names of the modules, and all other lines of standard error.
    """
    traced = [sys.executable, "-X", "importtime", "-m", "pyvgpu", *command]
    with subprocess.Popen(
        traced, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = list(itertools.islice(process.stderr, count))
        process.send_signal(signal.SIGINT)
        lines += process.stderr.readlines()
    names = [line.split("|")[-1].strip() for line in lines if line.startswith(IMPORTED)]
    return process.returncode, names, [line for line in lines if not line.startswith(IMPORTED)]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_ctrl_c_while_modules_load_ends_a_command_silently(command):
    _, names, _ = interrupt(command, 1 << 20)  # after its end
    # From the first module that the command line imports.
    begin = max(names.index("pyvgpu"), names.index("signal")) + 2
    for count in range(begin, len(names), max(1, (len(names) - begin) // MOMENTS)):
        code, _, said = interrupt(command, count)
        assert (code in SILENT, said) == (True, []), (count, names[count])
