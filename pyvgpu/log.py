"""One line on standard error, under our name."""

from __future__ import annotations

import logging
import sys


def say(text: str) -> None:
    """Tell the person one thing; standard output belongs to the program that runs."""
    if sys.stderr is not None:
        sys.stderr.write(f"pyvgpu: {text}\n")
        sys.stderr.flush()


def printable(text: object) -> str:
    """Return *text* without what would steer the terminal that shows it."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def begin(verbose: bool) -> None:
    """Let what the parts of a server log be written to standard error, each with its time."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


class LastResort(logging.Handler):
    """Says what a part has logged, where no command has set up logging, as servers do."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it in a line."""
        say(self.format(record))
