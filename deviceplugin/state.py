"""What kubelet has written down: which container holds which ids, and what we answered for it.

The file ``kubelet_internal_checkpoint`` is kubelet's own affair. It alone names pods by uid, and
ordinary init containers at all, and is written before a pod's admission ends, so before any
PreStartContainer. Three forms are read: ids by NUMA node, ids as a list (before 1.20), and the
oldest, without the outer ``Data``. Kubelet's sum over it is one over Go's structures, which nobody
else can make; what matters to us is that our own answer is in it, by its random id.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.deviceplugin import ids, messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FILE = "kubelet_internal_checkpoint"


class StateError(errors.UnavailableError):
    """What kubelet has written cannot be read now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What one container holds of one resource."""

    uid: str  # of the pod
    container: str
    kind: ids.Kind
    ids: frozenset[str]
    grant: str  # the id in our answer; empty if there is none in it


class State:
    """The file, read again when it is another; of the resources that are ours."""

    def __init__(self, folder: Path, resources: Iterable[ids.Resource] = ids.EITHER) -> None:
        self._file = folder / FILE
        self._kinds = {it.name: it.kind for it in resources}
        self._lock = threading.Lock()
        self._seen: object = None
        self._entries: tuple[Entry, ...] = ()

    def read(self) -> tuple[Entry, ...]:
        """Return what kubelet wrote last; StateError if that cannot be read."""
        with self._lock:
            try:
                found = self._file.stat()
                seen = (found.st_ino, found.st_size, found.st_mtime_ns)
                if seen != self._seen:
                    self._entries = tuple(self._parse(json.loads(self._file.read_bytes())))
                    self._seen = seen
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
                raise StateError(
                    f"{self._file}: what kubelet wrote cannot be read: {exc}"
                ) from exc
            return self._entries

    def _parse(self, document: Any) -> Iterator[Entry]:
        for entry in document.get("Data", document)["PodDeviceEntries"] or ():
            kind = self._kinds.get(entry["ResourceName"])
            if kind is None:
                continue
            held = entry["DeviceIDs"] or ()
            if isinstance(held, dict):
                held = [each for part in held.values() for each in part]
            answer = messages.Answer.decode(
                base64.b64decode(entry["AllocResp"] or "", validate=True)
            )
            yield Entry(
                str(entry["PodUID"]),
                str(entry["ContainerName"]),
                kind,
                frozenset(map(str, held)),
                answer.annotations.get(names.GRANT_KIND, ""),
            )
