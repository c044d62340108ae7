"""Reader for Nsight Systems reports exported by `nsys export --type sqlite`."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.replay.recording import DeviceActivity, HostCall, Recording, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WAYS = {1: "h2d", 2: "d2h", 8: "d2d", 10: "d2d"}  # of CUpti_ActivityMemcpyKind
_NO_STREAM = 2**32 - 1
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


def read(path: Path, content: bytes = b"") -> Recording:
    """Return the recording in the export at *path*, or in its *content*, if there is no file."""
    file = ":memory:" if content else f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(file, uri=True)) as db:
            if content:
                db.deserialize(content)
            db.row_factory = sqlite3.Row
            return _Export(path, db).read()
    except (sqlite3.Error, IndexError, TypeError, ValueError) as exc:
        raise errors.DataError(
            f"{path}: is not a complete export of Nsight Systems ({exc}), such as `nsys export "
            "--type sqlite report.nsys-rep` writes"
        ) from exc


class _Export:
    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._db = db
        self._tables = {
            row[0] for row in db.execute("select name from sqlite_master where type = 'table'")
        }
        if "StringIds" not in self._tables:
            raise errors.DataError(
                f"{path}: has no table StringIds; must be an export of Nsight Systems, such "
                "as `nsys export --type sqlite report.nsys-rep` writes"
            )
        self._strings = dict(map(tuple, db.execute("select id, value from StringIds")))

    def read(self) -> Recording:
        calls = self._calls()
        by_key = {call.key: call for call in calls}
        for row, process in self._rows("SYNCHRONIZATION"):
            call = by_key.get((process, row["correlationId"]))
            if call is not None and row["streamId"] not in (None, _NO_STREAM, -1):
                call.stream = row["streamId"]
        gpus: dict[int, str] = {}
        if "TARGET_INFO_GPU" in self._tables:
            gpus = dict(map(tuple, self._db.execute("select id, name from TARGET_INFO_GPU")))
        return Recording(calls, self._activities(), (), gpus)

    def _rows(self, table: str) -> Iterator[tuple[sqlite3.Row, int]]:
        """Yield the rows of a table of activities, each with its process."""
        name = f"CUPTI_ACTIVITY_KIND_{table}"
        if name not in self._tables:
            return
        for row in self._db.execute(f"select * from {name}"):  # noqa: S608 - a constant name
            given = row["globalPid"] if "globalPid" in row.keys() else row["globalTid"]  # noqa: SIM118
            yield row, given >> 24 & 0xFFFFFF

    def _calls(self) -> list[HostCall]:
        found = []
        for row, process in self._rows("RUNTIME"):
            kind = kind_of(_VERSION.sub("", self._strings.get(row["nameId"], "")))
            if kind is None:
                continue
            thread = row["globalTid"] & 0xFFFFFF
            key = (process, row["correlationId"])
            start, end = row["start"], row["end"]
            found.append(HostCall(process, thread, start, end - start, kind, key))
        return found

    def _activities(self) -> list[DeviceActivity]:
        found = []
        for row, process in self._rows("KERNEL"):
            one = self._activity(row, process, "kernel")
            one.name = self._strings.get(row["demangledName"], one.name)
            one.grid = (row["gridX"], row["gridY"], row["gridZ"])
            one.block = (row["blockX"], row["blockY"], row["blockZ"])
            one.shared = _number(row, "staticSharedMemory") + _number(row, "dynamicSharedMemory")
            found.append(one)
        for row, process in self._rows("MEMCPY"):
            found.append(self._activity(row, process, _WAYS.get(row["copyKind"], "memcpy")))
        for row, process in self._rows("MEMSET"):
            found.append(self._activity(row, process, "memset"))
        for row, process in self._rows("GRAPH_TRACE"):  # a graph as one piece
            one = self._activity(row, process, "kernel")
            one.name = f"graph {row['graphExecId']}" if "graphExecId" in row.keys() else "graph"  # noqa: SIM118
            found.append(one)
        return found

    def _activity(self, row: sqlite3.Row, process: int, kind: str) -> DeviceActivity:
        key = (process, row["correlationId"])
        start, end = row["start"], row["end"]
        return DeviceActivity(
            key, start, end - start, kind, row["deviceId"], row["streamId"], kind
        )


def _number(row: sqlite3.Row, column: str) -> int:
    value: Any = row[column] if column in row.keys() else 0  # noqa: SIM118
    return int(value or 0)
