"""Files that a user names for a command to read; where ``-`` is allowed, it is standard input."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pyvgpu import errors

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

STANDARD_INPUT = Path("-")
HELP = "- is standard input"


def title(path: Path) -> str:
    """Return the name of an input for messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def check_one_standard_input(*paths: Path | None) -> None:
    """Raise UsageError if several of a command's inputs are standard input."""
    if paths.count(STANDARD_INPUT) > 1:
        raise errors.UsageError(
            "-: is given twice; must be one of the inputs only, and the others files"
        )


def read_file(path: Path, name: str, rule: str) -> str:
    """Return the text of a file.

    If it cannot be read, DataError with *name*, which contains the path, the reason, and *rule*,
    which says what the file must be.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.DataError(f"{name}: {errors.reason_of(exc)}; {rule}") from exc


def read_input(path: Path, rule: str) -> str:
    """Return the text of a file or of standard input; DataError as from :func:`read_file`."""
    try:
        with open_input(path) as file:
            return file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.DataError(f"{title(path)}: {errors.reason_of(exc)}; {rule}") from exc


def open_input(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file, or standard input, which stays open afterwards; OSError if that fails."""
    if path != STANDARD_INPUT:
        return path.open("rb")
    if sys.stdin is None:  # closed when the interpreter started
        raise OSError(0, "is closed")
    return contextlib.nullcontext(sys.stdin.buffer)
