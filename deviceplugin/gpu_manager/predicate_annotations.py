"""Read and write the pod annotations of gpu-admission and gpu-manager: ``allocator/predicates``.

gpu-admission accounts for a node's devices by these annotations alone, so the agent writes them on
every pod, even on one that gpu-admission never saw.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.allocator import predicates
from pyvgpu.allocator.predicates import ASSIGNED, INDEX, NODE, TIME
from pyvgpu.deviceplugin.cluster import node_pods, scheduler_choice
from pyvgpu.deviceplugin.grants import placement
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.grants import pod_identity

    Minors = Callable[[], Mapping[str, int]]  # of the devices of the node, by UUID

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class GrantedPod:
    """A pod and the shares granted to it."""

    pod: pod_identity.KnownPod
    shares: Mapping[str, tuple[datatypes.NodeShare, ...]]


def read(
    pod: Mapping[str, Any], node: str, minors: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Return the devices in a pod's annotations, by container; none if they name another node.

    *minors* are those of this node's devices, by UUID. RefusedError if this node lacks an
    annotated device, final if it has any devices.
    """
    noted = pod["metadata"].get("annotations") or {}
    if noted.get(NODE, node) != node:
        return {}
    uuids = {str(minor): uuid for uuid, minor in minors.items()}
    found = {}
    for index, container in enumerate(pod["spec"]["containers"]):
        text = noted.get(f"{INDEX}{index}")
        if not text:
            continue
        unknown = [word for word in text.split(",") if word not in uuids]
        if unknown:
            raise placement.RefusedError(
                f"{INDEX}{index} {text!r}: must be minor numbers of this node's devices, such as "
                f"{','.join(sorted(uuids)) or '0'}",
                final=bool(uuids),
            )
        found[container["name"]] = tuple(uuids[word] for word in text.split(","))
    return found


def notes(
    pod: Mapping[str, Any], given: GrantedPod, node: str, minors: Mapping[str, int], now: float
) -> dict[str, str]:
    """Return the annotations that a pod lacks; *now* in seconds."""
    noted = pod["metadata"].get("annotations") or {}
    containers = [container["name"] for container in pod["spec"]["containers"]]
    when = noted.get(TIME, predicates.now(now))
    wanted = predicates.notes(containers, given.shares, node, minors, when) | {ASSIGNED: "true"}
    return {key: text for key, text in wanted.items() if noted.get(key) != text}


class Predicates:
    """Reads pods' annotations, and writes their granted devices on a thread of its own."""

    def __init__(self, known: node_pods.Pods, node: str, minors: Minors) -> None:
        self._known = known
        self._node = node
        self._minors = minors
        self._waiting: queue.SimpleQueue[GrantedPod | None] = queue.SimpleQueue()

    def choose(self, pod: pod_identity.KnownPod) -> placement.Chosen:
        """Return the devices in *pod*'s annotations, and its user's selection."""
        found = scheduler_choice.pod_of(self._known, pod)
        noted = read(found, self._node, self._minors())
        return placement.Chosen(noted, wanted=scheduler_choice.wanted_of(found))

    def note(
        self, pod: pod_identity.KnownPod, shares: Mapping[str, tuple[datatypes.NodeShare, ...]]
    ) -> None:
        """Queue the annotations of *pod*'s granted *shares*."""
        self._waiting.put(GrantedPod(pod, shares))

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._waiting.put(None)

    def run(self) -> None:
        """Write queued annotations; failures are logged, as for a pod that is gone."""
        while (given := self._waiting.get()) is not None:
            try:
                self._write(given)
            except (apiserver.ServerError, placement.RefusedError) as exc:
                log.warning("could not annotate pod %s: %s", given.pod.uid, exc)

    def _write(self, given: GrantedPod) -> None:
        found = scheduler_choice.pod_of(self._known, given.pod)
        wanted = notes(found, given, self._node, self._minors(), time.time())
        if not wanted:
            return
        meta = found["metadata"]
        # With the uid, the patch fails for a later pod of the same name.
        body = {"metadata": {"uid": given.pod.uid, "annotations": wanted}}
        path = node_pods.path_of(meta["namespace"], meta["name"])
        self._known.api.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
