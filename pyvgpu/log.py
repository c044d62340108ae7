"""One line on standard error, under our name."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Tell the person one thing; standard output belongs to the program that runs."""
    if sys.stderr is not None:
        sys.stderr.write(f"pyvgpu: {text}\n")
        sys.stderr.flush()
