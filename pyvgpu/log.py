"""Messages on standard error: single lines of commands, or the log of a daemon."""

from __future__ import annotations

import enum
import json
import logging
import sys
import time


class Format(enum.StrEnum):
    """The format of a daemon's log."""

    TEXT = "text"
    JSON = "json"


def begin(verbose: bool, form: str = Format.TEXT) -> None:
    """Set up a daemon's logging to standard error, with timestamps."""
    handler = logging.StreamHandler()
    if form == Format.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object: time, level, logger, thread, message, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def say(text: str) -> None:
    """Print a line for the user; standard output belongs to the program that runs."""
    if sys.stderr is not None:
        sys.stderr.write(f"pyvgpu: {text}\n")
        sys.stderr.flush()


def printable(text: object) -> str:
    """Return *text* without terminal control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


class LastResort(logging.Handler):
    """Prints log records as single lines in commands that have not set up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        say(self.format(record))
