"""Detects the format of a profiler's file, and reads it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.replay import kineto, nsys

if TYPE_CHECKING:
    from pyvgpu.replay.recording import DeviceActivity, HostCall, Recording

_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_REPORTS = (".nsys-rep", ".qdrep")
MOST_NS = 3600 * 10**9  # the replay of an hour takes minutes


def read(path: Path) -> Recording:
    """Return the recording in a file, - is standard input; DataError if it is no profile.

    No duration in it is negative, and it spans an hour at most.
    """
    found = _parsed(path)
    path = Path(input_files.title(path))
    events: tuple[HostCall | DeviceActivity, ...] = (*found.calls, *found.activities)
    for one in events:
        if one.duration < 0:
            raise errors.DataError(
                f"{path}: a {one.kind} at {one.start} ns ends before it starts; must be an "
                "unchanged file of the profiler, such as trace.json.gz"
            )
    first = min((one.start for one in events), default=0)
    span = max((one.end for one in events), default=0) - first
    if span > MOST_NS:
        raise errors.DataError(
            f"{path}: records more than {MOST_NS // 10**9:,} s; must be shorter, such as a few "
            "steps of the job"
        )
    return found


def _parsed(path: Path) -> Recording:
    if path.suffix in _REPORTS:
        raise errors.DataError(
            f"{path}: a report of Nsight Systems must be exported first, by `nsys export --type "
            f"sqlite --output {path.stem}.sqlite {path}`; then replay {path.stem}.sqlite"
        )
    named = Path(input_files.title(path))
    try:
        with input_files.open_input(path) as file:
            begin = file.read(len(_SQLITE))
            if begin == _SQLITE and path != input_files.STANDARD_INPUT and path.is_file():
                return nsys.read(path)
            data = begin + file.read()
        if begin == _SQLITE:
            return nsys.read(named, data)
        if data[:2] == _GZIP:
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise errors.DataError(
            f"{named}: is not a complete gzip file ({exc}), such as torch.profiler's trace.json.gz"
        ) from exc
    except OSError as exc:
        raise errors.of_files(
            f"{named}: must be a profile, such as trace.json.gz or report.sqlite; cannot be read",
            exc,
        ) from exc
    if data.lstrip()[:1] not in (b"{", b"["):
        raise errors.DataError(
            f"{named}: is not a profile; must be JSON of PyTorch's profiler, such as trace.json "
            "or trace.json.gz, or an export of Nsight Systems, such as report.sqlite"
        )
    return kineto.read(named, data.decode("utf-8", "replace"))
