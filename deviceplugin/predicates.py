"""Follows and writes on pods what gpu-admission and gpu-manager do: see ``allocator/predicates``.

gpu-admission counts a node's devices by these alone, and so they are written of every pod, also
of one that it never saw.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.allocator import predicates
from pyvgpu.allocator.predicates import ASSIGNED, INDEX, NODE, TIME
from pyvgpu.deviceplugin import choices, placing, pods
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.allocator import facts
    from pyvgpu.deviceplugin import identity

    Minors = Callable[[], Mapping[str, int]]  # of the devices of the node, by UUID

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What a pod has got."""

    pod: identity.Pod
    shares: Mapping[str, tuple[facts.Share, ...]]


def read(
    pod: Mapping[str, Any], node: str, minors: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Return which devices are noted for a pod, by container: none, or none of this node perhaps.

    *minors* are those of this node's devices, by UUID. RefusedError, which will not pass, if what
    is noted is nothing that this node has.
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
        unknown = [it for it in text.split(",") if it not in uuids]
        if unknown:
            raise placing.RefusedError(
                f"{INDEX}{index} {text!r}: must be minors of this node's devices, such as "
                f"{','.join(sorted(uuids)) or '0'}",
                final=bool(uuids),
            )
        found[container["name"]] = tuple(uuids[it] for it in text.split(","))
    return found


def notes(
    pod: Mapping[str, Any], given: Given, node: str, minors: Mapping[str, int], now: float
) -> dict[str, str]:
    """Return the annotations that a pod should have and has not; *now* in seconds."""
    noted = pod["metadata"].get("annotations") or {}
    containers = [it["name"] for it in pod["spec"]["containers"]]
    when = noted.get(TIME, predicates.now(now))
    wanted = predicates.notes(containers, given.shares, node, minors, when) | {ASSIGNED: "true"}
    return {key: text for key, text in wanted.items() if noted.get(key) != text}


class Predicates:
    """Reads what is noted on pods, and notes what they got, from a thread of its own."""

    def __init__(self, known: pods.Pods, node: str, minors: Minors) -> None:
        self._known = known
        self._node = node
        self._minors = minors
        self._waiting: queue.SimpleQueue[Given | None] = queue.SimpleQueue()

    def choose(self, pod: identity.Pod) -> placing.Chosen:
        """Return the devices that *pod* shall have, or which it wants."""
        found = choices.pod_of(self._known, pod)
        noted = read(found, self._node, self._minors())
        return placing.Chosen(noted, wanted=choices.wanted_of(found))

    def note(self, pod: identity.Pod, shares: Mapping[str, tuple[facts.Share, ...]]) -> None:
        """Let it be noted what *pod* has got."""
        self._waiting.put(Given(pod, shares))

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._waiting.put(None)

    def run(self) -> None:
        """Note what pods get; a pod that is gone needs no note."""
        while (given := self._waiting.get()) is not None:
            try:
                self._write(given)
            except (apiserver.ServerError, placing.RefusedError) as exc:
                log.warning("could not note what pod %s has got: %s", given.pod.uid, exc)

    def _write(self, given: Given) -> None:
        found = choices.pod_of(self._known, given.pod)
        wanted = notes(found, given, self._node, self._minors(), time.time())
        if not wanted:
            return
        meta = found["metadata"]
        # The uid makes it a patch of this pod, and none of one that has its name by now.
        body = {"metadata": {"uid": given.pod.uid, "annotations": wanted}}
        path = pods.path_of(meta["namespace"], meta["name"])
        self._known.api.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
