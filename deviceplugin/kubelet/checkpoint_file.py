"""Reader of kubelet's device-manager checkpoint: the ids of each container, and Allocate's answer.

The file ``kubelet_internal_checkpoint`` is kubelet-internal. Only it has the pods' uids and the
ordinary init containers, and kubelet writes it before a pod's admission ends, so before any
PreStartContainer. Three formats are read: ids by NUMA node, ids as a list (before 1.20), and the
oldest, without the outer ``Data``. Its checksum is over Go structures and cannot be verified here;
it suffices that the file has the agent's own answer, with its random id.
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
from pyvgpu.deviceplugin.kubelet import device_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

FILE = "kubelet_internal_checkpoint"

_MOST_ANSWERS = 1024  # in the cache: a node has a few hundred containers


class StateError(errors.UnavailableError):
    """Kubelet's checkpoint cannot be read now."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """The ids of one resource that one container holds."""

    uid: str  # of the pod
    container: str
    kind: device_ids.ResourceKind
    ids: frozenset[str]
    grant: str  # the grant's id in Allocate's answer; empty if there is none


class Entries(tuple[CheckpointEntry, ...]):
    """The entries of the file, in its order, indexed by pod and by id."""

    written = 0  # modification time of the file, in nanoseconds since the epoch

    def __init__(self, _entries: Iterable[CheckpointEntry] = ()) -> None:
        self._pods: dict[str, list[CheckpointEntry]] = {}
        for entry in self:
            self._pods.setdefault(entry.uid, []).append(entry)

    def of_pod(self, uid: str) -> Sequence[CheckpointEntry]:
        """Return the entries of a pod."""
        return self._pods.get(uid, ())

    def pods_with(self, kind: device_ids.ResourceKind, wanted: Iterable[str]) -> frozenset[str]:
        """Return the uids of the pods that have any of the ids *wanted*."""
        holders = self._holders[kind]
        return frozenset().union(
            *(holders[wanted_id] for wanted_id in wanted if wanted_id in holders)
        )

    @functools.cached_property
    def grants(self) -> frozenset[str]:
        """The ids of the grants in all entries."""
        return frozenset(entry.grant for entry in self)

    @functools.cached_property
    def _holders(self) -> Mapping[device_ids.ResourceKind, Mapping[str, set[str]]]:
        """The uids of the pods that have an id; mostly one."""
        found: dict[device_ids.ResourceKind, dict[str, set[str]]] = {
            kind: {} for kind in device_ids.ResourceKind
        }
        for entry in self:
            holders = found[entry.kind]
            for device_id in entry.ids:
                holders.setdefault(device_id, set()).add(entry.uid)
        return found


class CheckpointFile:
    """The file, re-read after each change, filtered by *resources*."""

    def __init__(
        self, folder: Path, resources: Iterable[device_ids.Resource] = device_ids.EITHER
    ) -> None:
        self._file = folder / FILE
        self._kinds = {resource.name: resource.kind for resource in resources}
        self._lock = threading.Lock()
        self._seen: object = None
        self._entries = Entries()
        self._grants: dict[str, str] = {}  # cache: grant id by Allocate's answer

    def read(self) -> Entries:
        """Return the current entries; StateError if the file cannot be read."""
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
                    f"{self._file}: kubelet's checkpoint cannot be read: {exc}"
                ) from exc
            return self._entries

    def _parse(self, document: Any) -> Iterator[CheckpointEntry]:
        for entry in document.get("Data", document)["PodDeviceEntries"] or ():
            kind = self._kinds.get(entry["ResourceName"])
            if kind is None:
                continue
            held = entry["DeviceIDs"] or ()
            if isinstance(held, dict):
                held = [each for part in held.values() for each in part]
            yield CheckpointEntry(
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
