"""Programs under the shim: ``pyvgpu run`` as the stages use it."""

import json
import os
import subprocess
import sys

from kit import cuda

PYVGPU = (sys.executable, "-c", "import sys; from pyvgpu import cli; sys.exit(cli.main())")


def command(options, program):
    """Return the command that runs *program* under a quota."""
    model = cuda.simulated()
    simulate = ("--simulate", model) if model else ()
    return [*PYVGPU, "run", *simulate, *map(str, options), "--", *program]


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
    """Let processes that have printed ``ready`` begin at once; return their last lines of JSON."""
    for process in started:
        process.stdout.readline()
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate()[0]) for process in started]
