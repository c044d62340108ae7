"""Standard output that cannot be written: a pipe without a reader, a full disk.

What was not written is given up. A reader who has gone knows, and is told nothing; a lack of
room is said in one line. Without this an exit code of the library that happens to write would
say that something else failed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReaderGoneError(errors.OutputError):
    """Nobody reads what we say."""

    exit_code = 141  # as a shell says that SIGPIPE ended it


class _Output:
    """Standard output whose failures are ours; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._failures():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._failures():
            self._stream.flush()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            # The interpreter writes what is buffered once more at its end: into nothing.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if isinstance(exc, BrokenPipeError):
                raise ReaderGoneError from exc
            raise errors.OutputError(f"standard output: {str(exc.strerror).lower()}") from exc


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Raise :class:`errors.OutputError` for what is written meanwhile and cannot be."""
    stream = sys.stdout
    if stream is None:
        yield
        return
    sys.stdout = cast("TextIO", _Output(stream))
    try:
        yield
        sys.stdout.flush()
    except SystemExit:  # --help, --version
        sys.stdout.flush()
        raise
    finally:
        sys.stdout = stream
