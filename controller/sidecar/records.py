"""The record of decisions about a pod's sidecars, stored in an annotation of the pod.

The controller writes it in the patch that begins to end the sidecars, and reads it after a
restart; the node part reads its stop requests from it. A record is valid for one pod and one end
of its main containers: a copy in another pod, or a malformed one, is ignored. During an upgrade it
is read by other versions than the one that wrote it: unknown fields are ignored, and absent ones
that a decision can do without have defaults.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar.termination_methods import ACTING, Method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyvgpu.controller.sidecar import sidecar_pods

VERSION = 1
MOST_STEPS = 2  # writes per pod
_METHODS = frozenset(method.value for method in Method)  # a later version may have tried others
LONGEST_SECONDS = 366 * 86400  # maximum from a write to the next path


@dataclasses.dataclass(frozen=True, slots=True)
class ActionRecord:
    """The action in progress on one sidecar."""

    path: Method
    id: str  # of the container that was running; empty if none
    grace_seconds: int = 0  # before the runtime may kill it
    kill: bool = True  # after the grace period; false: only signal it
    order: int = 0  # ascending; each group waits for the end of the one before
    command: str = ""  # run in the container before the signal
    tried: frozenset[Method] = frozenset()  # paths tried before


@dataclasses.dataclass(frozen=True, slots=True)
class PodRecord:
    """A decision about a pod's sidecars."""

    uid: str  # of the pod
    mains_ended: str  # when its main containers ended, as kubelet wrote it
    step: int  # 1, 2
    at: datetime.datetime
    seconds: float  # from *at* until the next path is due
    entries: Mapping[str, ActionRecord]  # by container name

    @property
    def due(self) -> datetime.datetime:
        """The time when the next path is due."""
        return self.at + datetime.timedelta(seconds=self.seconds)

    @property
    def begun(self) -> dict[str, Method]:
        """The paths that the last write began; for a second write, those of retried sidecars."""
        entries = self.entries.items()
        return {name: entry.path for name, entry in entries if entry.tried or self.step == 1}


def write(record: PodRecord) -> str:
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


def read(pod: sidecar_pods.WatchedPod, mains_ended: str) -> PodRecord | None:
    """Return the record of *pod* and this end of its main containers, None if there is none."""
    record = read_any(pod)
    return record if record and record.mains_ended == mains_ended else None


def read_any(pod: sidecar_pods.WatchedPod) -> PodRecord | None:
    """Return the record of *pod*, whichever end it speaks of; None if there is none."""
    text = pod.annotations.get(names.STOP_ANNOTATION)
    if not text:
        return None
    try:
        record = _parse(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return record if record and record.uid == pod.uid else None


def _parse(document: Any) -> PodRecord | None:
    record = PodRecord(
        uid=str(document["uid"]),
        mains_ended=str(document["mainsEnded"]),
        step=int(document["step"]),
        at=datetime.datetime.fromisoformat(document["at"]),
        seconds=float(document["seconds"]),
        entries={
            str(name): ActionRecord(
                path=Method(entry["path"]),
                id=str(entry["id"]),
                grace_seconds=int(entry.get("graceSeconds", 0)),
                kill=bool(entry.get("kill", True)),
                order=int(entry.get("order", 0)),
                command=str(entry.get("command", "")),
                tried=frozenset(
                    Method(path) for path in entry.get("tried", ()) if path in _METHODS
                ),
            )
            for name, entry in document["containers"].items()
        },
    )
    sane = (
        document["v"] == VERSION
        and 1 <= record.step <= MOST_STEPS
        and record.at.tzinfo is not None
        and 0 <= record.seconds <= LONGEST_SECONDS
        and record.at.year < datetime.MAXYEAR  # the due time must be representable
        and all(map(_is_sane, record.entries.items()))
    )
    return record if sane else None


def _is_sane(item: tuple[str, ActionRecord]) -> bool:
    name, entry = item
    return name.isascii() and entry.path in ACTING and 0 <= entry.grace_seconds <= LONGEST_SECONDS
