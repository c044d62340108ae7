"""Error handling of standard output: closed pipes and streams, full disks, characters.

Unwritten output is discarded. A closed pipe ends the command silently; a full disk is reported in
one line. Without this the exit code would be that of the library that happens to write, as if
something else had failed. Characters that the encoding lacks are replaced by similar ones.
"""

from __future__ import annotations

import contextlib
import io
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
    """The reader of our standard output has closed the pipe."""

    exit_code = 141  # 128 + SIGPIPE, as in a shell


class _Output:
    """Standard output whose write errors become OutputError; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._failures():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:  # nothing has been written
                return self._stream.write(_encodable(text, self._stream.encoding))

    def flush(self) -> None:
        with self._failures():
            self._stream.flush()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            # At its end the interpreter flushes the buffer again: let it write to /dev/null.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if isinstance(exc, BrokenPipeError):
                raise ReaderGoneError from exc
            raise errors.OutputError(f"standard output: {str(exc.strerror).lower()}") from exc


class _Closed(io.TextIOBase):
    """Standard output that was closed when the command started: it can only be left empty."""

    encoding = "utf-8"

    def write(self, _text: str, /) -> int:
        raise errors.OutputError("standard output: is closed")


def _encodable(text: str, encoding: str) -> str:
    """Return *text* with the characters that *encoding* lacks replaced."""
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Raise :class:`errors.OutputError` if writing to standard output fails in the block."""
    stream = sys.stdout
    sys.stdout = cast("TextIO", _Closed() if stream is None else _Output(stream))
    try:
        yield
        sys.stdout.flush()
    except SystemExit:  # --help, --version
        sys.stdout.flush()
        raise
    finally:
        sys.stdout = stream
