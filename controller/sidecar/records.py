"""What was decided about a pod's sidecars, as it stands in an annotation of the pod.

The controller writes it with the patch that begins the ending, and reads it after any restart; the
node part takes its requests from it. It speaks of one pod and one end of its main containers: a
copy in another pod, or one that somebody made up, is no record.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar.how import ACTING, Path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyvgpu.controller.sidecar import pods

VERSION = 1
MOST_STEPS = 2  # writes per pod
LONGEST_SECONDS = 366 * 86400  # from a write until something else is to be tried


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What is being done about one sidecar."""

    path: Path
    id: str  # of the container that was running; empty if none was
    grace_seconds: int = 0  # that it has for ending by itself
    kill: bool = True  # when that time is over; else it is only told
    order: int = 0  # the lowest first, each group after the one before has ended
    command: str = ""  # run in it before the signal
    tried: frozenset[Path] = frozenset()  # before this


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What was decided, and when."""

    uid: str  # of the pod
    mains_ended: str  # when its main containers did, as kubelet wrote it
    step: int  # 1, 2
    at: datetime.datetime
    seconds: float  # from then until something else is to be tried
    entries: Mapping[str, Entry]  # by the name of the container

    @property
    def due(self) -> datetime.datetime:
        """Return when something else is to be tried."""
        return self.at + datetime.timedelta(seconds=self.seconds)

    @property
    def begun(self) -> dict[str, Path]:
        """Return what the last write began: in a second one, what was tried otherwise before."""
        entries = self.entries.items()
        return {name: it.path for name, it in entries if it.tried or self.step == 1}


def write(record: Record) -> str:
    """Return the text of the annotation."""
    return json.dumps(
        {
            "v": VERSION,
            "uid": record.uid,
            "mainsEnded": record.mains_ended,
            "step": record.step,
            "at": record.at.isoformat(timespec="milliseconds"),
            "seconds": record.seconds,
            "containers": {
                name: {
                    "path": entry.path.value,
                    "id": entry.id,
                    "graceSeconds": entry.grace_seconds,
                    "kill": entry.kill,
                    "order": entry.order,
                    "command": entry.command,
                    "tried": sorted(path.value for path in entry.tried),
                }
                for name, entry in sorted(record.entries.items())
            },
        },
        separators=(",", ":"),
    )


def read(pod: pods.Pod, mains_ended: str) -> Record | None:
    """Return the record of *pod* and this end of its main containers, None if there is none."""
    record = read_any(pod)
    return record if record and record.mains_ended == mains_ended else None


def read_any(pod: pods.Pod) -> Record | None:
    """Return the record of *pod*, whichever end it speaks of; None if there is none."""
    text = pod.annotations.get(names.STOP_ANNOTATION)
    if not text:
        return None
    try:
        record = _parse(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return record if record and record.uid == pod.uid else None


def _parse(document: Any) -> Record | None:
    record = Record(
        uid=str(document["uid"]),
        mains_ended=str(document["mainsEnded"]),
        step=int(document["step"]),
        at=datetime.datetime.fromisoformat(document["at"]),
        seconds=float(document["seconds"]),
        entries={
            str(name): Entry(
                path=Path(entry["path"]),
                id=str(entry["id"]),
                grace_seconds=int(entry["graceSeconds"]),
                kill=bool(entry["kill"]),
                order=int(entry["order"]),
                command=str(entry["command"]),
                tried=frozenset(map(Path, entry["tried"])),
            )
            for name, entry in document["containers"].items()
        },
    )
    sane = (
        document["v"] == VERSION
        and 1 <= record.step <= MOST_STEPS
        and record.at.tzinfo is not None
        and 0 <= record.seconds <= LONGEST_SECONDS
        and record.at.year < datetime.MAXYEAR  # so that there is a time after it
        and all(map(_is_sane, record.entries.items()))
    )
    return record if sane else None


def _is_sane(item: tuple[str, Entry]) -> bool:
    name, entry = item
    return name.isascii() and entry.path in ACTING and 0 <= entry.grace_seconds <= LONGEST_SECONDS
