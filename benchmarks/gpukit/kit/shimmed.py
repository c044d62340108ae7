"""Running programs under the shim: ``pyvgpu run`` for the stages."""

import json
import os
import subprocess
import sys

from kit import cuda

PYVGPU = (sys.executable, "-c", "import sys; from pyvgpu import cli; sys.exit(cli.main())")


class EndedError(Exception):
    """A process of a stage ended early; what it said is in log.txt."""


def command(options, program):
    """Return the command that runs *program* under a quota."""
    return [*PYVGPU, "run", *where(), *map(str, options), "--", *program]


def where():
    """Return the options that name the machine and the device."""
    model, device = cuda.simulated(), os.environ.get(cuda.DEVICE_VARIABLE)
    simulate = ("--simulate", model) if model else ()
    return (*simulate, "--device", device) if device else simulate


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(options, program, seconds=60):
    """Run *program* to its end; *options* of None: without the shim."""
    full = program if options is None else command(options, program)
    return subprocess.run(full, capture_output=True, text=True, timeout=seconds, check=False)


def answer(options, program, seconds=60, keep=()):
    """Run *program*; return the JSON of its last line as it is, or a text that says why not.

    The text is the end of what it printed. *keep* are exit codes besides 0 at which JSON counts.
    """
    try:
        done = run(options, program, seconds)
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:g} s"
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = None
    if found is not None and done.returncode in (0, *keep):
        return found
    said = (done.stderr or done.stdout).strip()[-400:]
    return f"{said} (exit code {done.returncode})"


def start(options, program, environment=()):
    """Start *program*, with pairs of *environment* besides what is set here."""
    full = program if options is None else command(options, program)
    return subprocess.Popen(
        full, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **dict(environment)},
    )  # fmt: skip


def together(started):
    """Let processes that have printed ``ready`` begin at once; return their last lines of JSON.

    EndedError if one does not come to its end.
    """
    for process in started:
        if process.stdout.readline() != "ready\n":
            raise EndedError(f"a process ended with {process.wait()} before it was ready")
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in started]
    for process, text in zip(started, said, strict=True):
        if process.returncode or not text:
            raise EndedError(f"a process ended with {process.returncode}")
    return [json.loads(text.splitlines()[-1]) for text in said]
