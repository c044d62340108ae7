"""Discovery of the node agents, and a cached client for their status documents.

Only agents know the measured use of containers. An agent is queried only while a user views its
node, at most once in KEPT_SECONDS. Agents serve plain HTTP without credentials: a document holds
nothing that their metrics do not.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.http import endpoints
from pyvgpu.kube import informer, objects
from pyvgpu.status import site

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.kube import apiserver
    from pyvgpu.kube.objects import Object

SECONDS = 3.0  # request timeout
KEPT_SECONDS = 2.0
MOST_KEPT = 64
MOST_BYTES = 8 << 20
LABEL = "app=agent"


@dataclasses.dataclass(frozen=True, slots=True)
class AgentPod:
    """The pod of one agent."""

    node: str
    address: str  # pod IP; empty: not assigned yet
    ready: bool


def read(pod: Object) -> AgentPod:
    """Return the agent that runs in *pod*."""
    status = objects.section(pod, "status")
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in objects.entries(status, "conditions")
    )
    node = str(objects.section(pod, "spec").get("nodeName") or "")
    return AgentPod(node, str(status.get("podIP") or ""), ready)


class Agents:
    """Watches the agents' pods and queries the agents."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        namespace: str,
        port: int,
        changed: Callable[[str], None],
        counting: informer.Counting | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call *changed* with the name of each node whose agent's pod changes."""
        self._tell = changed
        self._port = port
        self._clock = clock
        self._pods = informer.Informer(
            api,
            f"/api/v1/namespaces/{namespace}/pods",
            {"labelSelector": LABEL},
            read,
            self._changed,
            counting,
        )
        self.run = self._pods.run
        self.synced = self._pods.synced
        self._nodes: dict[str, str] = {}  # by pod
        self._agents: dict[str, dict[str, AgentPod]] = {}  # by node and pod
        self._asking: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def trouble(self, node: str) -> str:
        """Return why the agent of *node* is not ready; empty if it is."""
        found = self._agents.get(node)
        if not found:
            return "its agent is not running"
        return "" if any(agent.ready for agent in found.values()) else "its agent is not ready"

    def ask(self, node: str) -> dict[str, Any]:
        """Return the status document of a node's agent; UnavailableError if it does not answer."""
        with self._lock:
            lock = self._asking.setdefault(node, threading.Lock())
        try:
            with lock:  # concurrent callers share one answer
                kept = self._kept.get(node)
                if kept is None or self._clock() >= kept[0] + KEPT_SECONDS:
                    kept = self._clock(), self._get(node)
                    self._keep(node, kept)
                return kept[1]
        finally:
            with self._lock:
                if not lock.locked():
                    self._asking.pop(node, None)

    def _keep(self, node: str, kept: tuple[float, dict[str, Any]]) -> None:
        with self._lock:
            self._kept.pop(node, None)
            self._kept[node] = kept
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]

    def _get(self, node: str) -> dict[str, Any]:
        found = [agent for agent in self._agents.get(node, {}).values() if agent.address]
        if not found:
            raise errors.UnavailableError("it does not run")
        one = max(found, key=lambda agent: agent.ready)
        where = one.address, self._port
        try:
            answer = endpoints.ask(where, site.NUMBERS, SECONDS, MOST_BYTES + 1)
        except errors.UnavailableError as exc:
            raise errors.UnavailableError(f"it does not answer: {exc}") from exc
        if answer.code != 200 or len(answer.content) > MOST_BYTES:
            raise errors.UnavailableError(
                f"it answers with {answer.code}: is it an older version?"
            )
        return _document(answer.content)

    def _changed(self, key: str) -> None:
        agent = self._pods.get(key)
        before = self._nodes.pop(key, "")
        if before:
            self._agents[before].pop(key, None)
            if not self._agents[before]:
                del self._agents[before]
        if agent is not None and agent.node:
            self._nodes[key] = agent.node
            self._agents.setdefault(agent.node, {})[key] = agent
        for node in {before, agent.node if agent else ""} - {""}:
            self._tell(node)


def _document(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise errors.UnavailableError("its answer is not JSON") from exc
    if not isinstance(found, dict) or found.get("kind") != "node":
        raise errors.UnavailableError("its answer is not a node's status document")
    return found
