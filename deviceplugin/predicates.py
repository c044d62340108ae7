"""What gpu-admission and gpu-manager write on pods, for those who have the one or the other.

    tencent.com/predicate-gpu-idx-<i>   minors of the devices of container i of spec.containers
    tencent.com/predicate-node          the node that gpu-admission means
    tencent.com/predicate-time          when it was chosen, in nanoseconds
    tencent.com/gpu-assigned            "true" once the devices are given

gpu-admission counts a node's devices by these alone, and so they are written of every pod, also
of one that it never saw. Nobody seals them: they choose among what is free, and never give more.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.deviceplugin import apiserver, choices, placing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.allocator import facts
    from pyvgpu.deviceplugin import identity

    Minors = Callable[[], Mapping[str, int]]  # of the devices of the node, by UUID

log = logging.getLogger(__name__)

INDEX, NODE, TIME, ASSIGNED = (
    f"{names.GAIA_DOMAIN}/{it}"
    for it in ("predicate-gpu-idx-", "predicate-node", "predicate-time", "gpu-assigned")
)
AGAIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What a pod has got."""

    pod: identity.Pod
    shares: Mapping[str, tuple[facts.Share, ...]]


def read(pod: Mapping[str, Any], node: str, minors: Mapping[str, int]) -> placing.Chosen | None:
    """Return which devices are noted for a pod; None if none are, or they are of another node.

    *minors* are those of this node's devices, by UUID. RefusedError, which will not pass, if what
    is noted is nothing that this node has.
    """
    noted = pod["metadata"].get("annotations") or {}
    if noted.get(NODE, node) != node:
        return None
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
    return placing.Chosen(found) if found else None


def notes(
    pod: Mapping[str, Any], given: Given, node: str, minors: Mapping[str, int], now: float
) -> dict[str, str]:
    """Return the annotations that a pod should have and has not; *now* in seconds."""
    noted = pod["metadata"].get("annotations") or {}
    wanted = {
        f"{INDEX}{index}": ",".join(str(minors[it.uuid]) for it in given.shares[name])
        for index, name in enumerate(it["name"] for it in pod["spec"]["containers"])
        if name in given.shares and all(it.uuid in minors for it in given.shares[name])
    }
    wanted |= {NODE: node, ASSIGNED: "true", TIME: noted.get(TIME, str(round(now * 1e9)))}
    return {key: text for key, text in wanted.items() if noted.get(key) != text}


class Predicates:
    """Reads what is noted on pods, and notes what they got, from a thread of its own."""

    def __init__(self, api: apiserver.ApiServer, node: str, minors: Minors) -> None:
        self._api = api
        self._node = node
        self._minors = minors
        self._waiting: queue.SimpleQueue[Given | None] = queue.SimpleQueue()

    def choose(self, pod: identity.Pod) -> placing.Chosen | None:
        """Return the devices that *pod* shall have; None if nobody has chosen."""
        return read(choices.pod_of(self._api, self._node, pod), self._node, self._minors())

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
        found = choices.pod_of(self._api, self._node, given.pod)
        wanted = notes(found, given, self._node, self._minors(), time.time())
        if not wanted:
            return
        meta = found["metadata"]
        # The uid makes it a patch of this pod, and none of one that has its name by now.
        body = {"metadata": {"uid": given.pod.uid, "annotations": wanted}}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._api.call("PATCH", path, body=body, kind=apiserver.MERGE)
