"""Reader of recordings reduced to their launches: gzip, a header and records as lists."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.replay.trace import Trace, TraceRecord

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "launch-trace 1"


def read(path: Path) -> Trace:
    """Return the recording in a file of that format."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            header = json.loads(next(lines))
            if header.get("format") != FORMAT:
                raise errors.DataError(f"{path}: its first line must say {FORMAT!r}")
            columns = header["columns"]
            records = [
                _record(dict(zip(columns, json.loads(line), strict=True))) for line in lines
            ]
    except (OSError, EOFError, StopIteration, ValueError, KeyError, zlib.error) as exc:
        raise errors.DataError(f"{path}: it is no whole {FORMAT!r}: {exc}") from exc
    return Trace(
        header["name"] or path.name.partition(".")[0],
        [stream["stream"] for stream in header["streams"]],
        header["kernels"],
        records,
        header["duration"],
    )


def _record(row: dict[str, object]) -> TraceRecord:
    names = (
        "thread", "kind", "stream", "device_start", "kernel", "grid", "block", "ref", "after",
    )  # fmt: skip
    numbers = {name: row[name] or 0 for name in ("start", "duration", "device_duration", "shared")}
    return TraceRecord(**{name: row[name] for name in names}, **numbers)  # type: ignore[arg-type]
