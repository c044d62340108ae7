"""Run one stage in this process: ``python -m kit.onestage NAME DESCRIPTOR``.

The runner ends this process group once the stage is over. If the runner itself is killed, a guard
does: it waits for the end of a pipe, its DESCRIPTOR, of which only the runner has the other end.
"""

import importlib
import os
import resource
import signal
import sys

from kit import report

UNKNOWN = "undefined symbol:"  # what ctypes says of a function that a driver lacks


def guard(lived):
    """Fork the guard."""
    if os.fork():
        os.close(lived)
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.read(lived, 1)
    os.killpg(0, signal.SIGKILL)


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    guard(int(sys.argv[2]))
    lines = report.from_environment()
    try:
        importlib.import_module(f"kit.stages.{sys.argv[1]}").run(lines)
    except AttributeError as exc:
        if UNKNOWN not in str(exc):
            raise
        lines.missing(f"function{str(exc).partition(UNKNOWN)[2]}", "the driver does not have it")


if __name__ == "__main__":
    main()
