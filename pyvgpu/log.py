"""What our programs say: one line on standard error under our name, or a log of a daemon."""

from __future__ import annotations

import enum
import json
import logging
import sys
import time


class Format(enum.StrEnum):
    """How the log of a program that stays is written."""

    TEXT = "text"
    JSON = "json"


def begin(verbose: bool, form: str = Format.TEXT) -> None:
    """Let what the parts of a server log be written to standard error, each with its time."""
    handler = logging.StreamHandler()
    if form == Format.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """An object of JSON for each entry: time, level, who says it, what; a fault's traceback."""

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
    """Tell the person one thing; standard output belongs to the program that runs."""
    if sys.stderr is not None:
        sys.stderr.write(f"pyvgpu: {text}\n")
        sys.stderr.flush()


def printable(text: object) -> str:
    """Return *text* without what would steer the terminal that shows it."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


class LastResort(logging.Handler):
    """Says what a part has logged, where no command has set up logging, as servers do."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it in a line."""
        say(self.format(record))
