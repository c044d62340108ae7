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
import functools
import json
import threading
from typing import TYPE_CHECKING, Any

from google.protobuf import message

from pyvgpu import errors, names
from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu.deviceplugin import ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

FILE = "kubelet_internal_checkpoint"

_MOST_ANSWERS = 1024  # that are kept: a node has a few hundred containers


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


class Entries(tuple[Entry, ...]):
    """What the file has, in its order; of each pod, and of each id."""

    written = 0  # when, in nanoseconds since the epoch

    def __init__(self, _entries: Iterable[Entry] = ()) -> None:
        self._pods: dict[str, list[Entry]] = {}
        for entry in self:
            self._pods.setdefault(entry.uid, []).append(entry)

    def of_pod(self, uid: str) -> Sequence[Entry]:
        """Return those of a pod."""
        return self._pods.get(uid, ())

    def pods_with(self, kind: ids.Kind, wanted: Iterable[str]) -> frozenset[str]:
        """Return the uids of the pods that have any of the ids *wanted*."""
        holders = self._holders[kind]
        return frozenset().union(*(holders[it] for it in wanted if it in holders))

    @functools.cached_property
    def grants(self) -> frozenset[str]:
        """The ids of our answers."""
        return frozenset(it.grant for it in self)

    @functools.cached_property
    def _holders(self) -> Mapping[ids.Kind, Mapping[str, set[str]]]:
        """The uids of the pods that have an id; mostly it is one."""
        found: dict[ids.Kind, dict[str, set[str]]] = {kind: {} for kind in ids.Kind}
        for entry in self:
            holders = found[entry.kind]
            for it in entry.ids:
                holders.setdefault(it, set()).add(entry.uid)
        return found


class State:
    """The file, read again when it is another; of the resources that are ours."""

    def __init__(self, folder: Path, resources: Iterable[ids.Resource] = ids.EITHER) -> None:
        self._file = folder / FILE
        self._kinds = {it.name: it.kind for it in resources}
        self._lock = threading.Lock()
        self._seen: object = None
        self._entries = Entries()
        self._grants: dict[str, str] = {}  # by our answers: what is read of one stays so

    def read(self) -> Entries:
        """Return what kubelet wrote last; StateError if that cannot be read."""
        with self._lock:
            try:
                found = self._file.stat()
                seen = (found.st_ino, found.st_size, found.st_mtime_ns)
                if seen != self._seen:
                    document = json.loads(self._file.read_bytes())
                    if len(self._grants) > _MOST_ANSWERS:
                        self._grants.clear()
                    self._entries = Entries(self._parse(document))
                    self._entries.written = found.st_mtime_ns
                    self._seen = seen
            except (
                *(OSError, ValueError, TypeError, KeyError, AttributeError),
                message.DecodeError,
            ) as exc:
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
            yield Entry(
                str(entry["PodUID"]),
                str(entry["ContainerName"]),
                kind,
                frozenset(map(str, held)),
                self._grant(entry["AllocResp"] or ""),
            )

    def _grant(self, answer: str) -> str:
        found = self._grants.get(answer)
        if found is None:
            content = base64.b64decode(answer, validate=True)
            annotations = api.ContainerAllocateResponse.FromString(content).annotations
            found = self._grants[answer] = annotations.get(names.GRANT_KIND, "")
        return found
