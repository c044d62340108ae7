"""The agent's own Node object, from one watch that all components share.

While the API server is unavailable, reads return the last seen state, and writes fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin.cluster import agent_watch
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class OwnNode(agent_watch.Watching[dict[str, Any]]):
    """One node; thread-safe."""

    def __init__(self, api: apiserver.ApiServer, name: str) -> None:
        self.name = name
        query = {"fieldSelector": f"metadata.name={name}"}
        super().__init__(
            api, informer.Informer(api, "/api/v1/nodes", query, _read, lambda _: None)
        )

    def metadata(self) -> Mapping[str, Any]:
        """Return its last seen metadata; ServerError if it was never seen."""
        found: Mapping[str, Any] = self._node()["metadata"]
        return found

    def capacity(self) -> Mapping[str, Any]:
        """Return its last seen capacity; ServerError if it was never seen."""
        found: Mapping[str, Any] = self._node()["capacity"]
        return found

    def taints(self) -> Sequence[Mapping[str, Any]]:
        """Return its last seen taints; ServerError if it was never seen."""
        found: Sequence[Mapping[str, Any]] = self._node()["taints"]
        return found

    def set_taints(self, taints: Sequence[Mapping[str, Any]]) -> None:
        """Replace its taints; ServerError, such as a conflict if it has changed since seen."""
        body = {
            "metadata": {"resourceVersion": self._node()["metadata"].get("resourceVersion")},
            "spec": {"taints": list(taints)},
        }
        self.api.call("PATCH", f"/api/v1/nodes/{self.name}", body=body, kind=apiserver.MERGE_PATCH)

    @property
    def uid(self) -> str:
        """Its uid; empty: it was never seen."""
        node = self._seen.get(self.name)
        return str(node["metadata"].get("uid", "")) if node else ""

    def write(self, metadata: Mapping[str, Any]) -> None:
        """Merge *metadata* into the node's; ServerError if that fails."""
        body = {"metadata": metadata}
        path = f"/api/v1/nodes/{self.name}"
        self.api.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)

    def _node(self) -> dict[str, Any]:
        node = self._seen.get(self.name)
        if node is None and self._seen.synced.is_set():
            raise apiserver.ServerError(f"there is no node {self.name}", apiserver.NOT_FOUND)
        if node is None:
            raise apiserver.ServerError(f"node {self.name} has not been read yet")
        return node


def _read(node: apiserver.Object) -> dict[str, Any]:
    """Return the fields that the agent uses, without, for example, the list of images."""
    kept = ("name", "uid", "annotations", "labels", "resourceVersion")
    metadata = {field: node["metadata"][field] for field in kept if field in node["metadata"]}
    return {
        "metadata": metadata,
        "capacity": (node.get("status") or {}).get("capacity") or {},
        "taints": (node.get("spec") or {}).get("taints") or [],
    }
