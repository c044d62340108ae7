"""Entry points of the programs; `python -m pyvgpu` is the same as `pyvgpu`.

Each function returns an exit code. While modules load and while the interpreter ends, SIGINT has
the kernel's default action, which ends the process silently. Python's own handler would raise
KeyboardInterrupt wherever the interpreter is, and print a traceback.
"""

import signal
import sys


def main() -> int:
    """Run `pyvgpu`."""
    return _run("main")


def kubectl() -> int:
    """Run `kubectl vgpu`."""
    return _run("kubectl_main")


def kubectl_complete() -> int:
    """Run `kubectl_complete-vgpu`, which kubectl's completion calls."""
    return _run("kubectl_complete")


def _run(name: str) -> int:
    """Run a function of the command line, which restores Python's handler once it has loaded."""
    _end_silently()
    try:
        from pyvgpu import cli

        return int(getattr(cli, name)())
    finally:
        _end_silently()


def _end_silently() -> None:
    """Give SIGINT its default action, unless it is ignored or the command has a handler."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler or getattr(handler, "__name__", "") == "interrupt":
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
