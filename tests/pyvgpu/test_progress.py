import os
import pty
import subprocess
import sys

SLOW_COPY = """
from pyvgpu.cli import progress
progress.DELAY_SECONDS = float({delay!r})
with progress.copying("copying the driver's libraries") as report:
    for done in range(5):
        report(f"libfile{{done}}.so", done << 20, 4 << 20)
"""


def run(delay, **options):
    command = [sys.executable, "-c", SLOW_COPY.format(delay=delay)]
    return subprocess.run(command, capture_output="stderr" not in options, check=True, **options)


def test_short_copy_is_silent():
    done = run("60")
    assert (done.stdout, done.stderr) == (b"", b"")


def test_long_copy_is_one_line_without_a_terminal():
    done = run("0")
    assert done.stdout == b""
    assert done.stderr == b"pyvgpu: copying the driver's libraries, 4MiB, once\n"


def shown_on(kind):
    ours, theirs = pty.openpty()
    with open(theirs, "wb") as terminal:  # noqa: PTH123 - a descriptor
        run("0", stderr=terminal, env={**os.environ, "TERM": kind})
    with open(ours, "rb", buffering=0) as seen:  # noqa: PTH123 - a descriptor
        return seen.read(65536)


def test_long_copy_is_one_line_on_a_terminal_that_cannot_draw():
    assert shown_on("dumb") == b"pyvgpu: copying the driver's libraries, 4MiB, once\r\n"


def test_long_copy_is_a_bar_on_a_terminal():
    shown = shown_on("xterm")
    assert b"copying the driver's libraries" in shown
    assert b"MB" in shown
