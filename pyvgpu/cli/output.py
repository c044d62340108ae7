"""Standard output that cannot be written: no reader of a pipe, a full disk, no such character.

What was not written is given up. A reader who has gone knows, and is told nothing; a lack of
room is said in one line. Without this an exit code of the library that happens to write would
say that something else failed. Characters that the output's encoding has not are written by
others that are like them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


_PLAIN = str.maketrans(
    {"→": "->", "█": "#", "░": ".", "✓": "+", "✗": "x", "…": "..."}
    | dict(zip("▁▂▃▄▅▆▇", "1234567", strict=True))
)


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
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:  # nothing of it is written
                return self._stream.write(_encodable(text, self._stream.encoding))

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


def _encodable(text: str, encoding: str) -> str:
    """Return *text* as far as *encoding* can say it."""
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


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
