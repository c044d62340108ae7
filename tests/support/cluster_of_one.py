"""An API server with one node and the pods that a kubelet has admitted, as an agent sees it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import small_api

from pyvgpu import names
from pyvgpu.allocator import annotations
from pyvgpu.deviceplugin import pods
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fake_kubelet import Pod

NODE = "node-1"
KEY = b"k" * 32
_NODE_PATH = f"/api/v1/nodes/{NODE}"
OWNER = {"kind": "ReplicaSet", "name": "r", "uid": "o"}


class Cluster:
    """What the API server knows."""

    def __init__(self, api: small_api.SmallApi, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.connection = apiserver.connect(str(kubeconfig), patience=0.0)
        self.pods = pods.Pods(self.connection, NODE)  # which nothing watches: each is asked for
        api.put(_NODE_PATH, {"metadata": {"name": NODE, "uid": "uid-of-node"}})

    def add(self, one: Pod, notes: Mapping[str, str], *, owned: bool = False) -> None:
        """Let there be the pod that kubelet has as *one*, with these annotations."""
        made: dict[str, Any] = {
            "metadata": {
                "name": one.name,
                "namespace": one.namespace,
                "uid": one.uid,
                "annotations": dict(notes),
                "ownerReferences": [OWNER] if owned else [],
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": it.name} for it in one.containers if not it.init],
            },
        }
        self.api.put(self.path_of(one), made)

    def notes(self, one: Pod) -> dict[str, str]:
        """Return the annotations of a pod as they are now."""
        found: dict[str, str] = self.api.read(self.path_of(one))["metadata"]["annotations"]
        return found

    def path_of(self, one: Pod) -> str:
        """Return where a pod is."""
        return f"/api/v1/namespaces/{one.namespace}/pods/{one.name}"

    @property
    def text(self) -> str:
        """What is published of the node; empty if nothing is."""
        found = self.api.read(_NODE_PATH)["metadata"].get("annotations") or {}
        return str(found.get(names.NODE_DEVICES_ANNOTATION, ""))

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the node."""
        return dict(self.api.read(_NODE_PATH)["metadata"].get("labels") or {})

    @property
    def published(self) -> annotations.Published:
        """The same, read."""
        return annotations.read_node(self.text)

    def forget_published(self) -> None:
        """Let the node have been deleted, and made again."""
        self.api.put(_NODE_PATH, {"metadata": {"name": NODE, "uid": "uid-of-node"}})

    def times_published(self) -> int:
        """Return how often it was written."""
        return self.api.asked.count(("PATCH", _NODE_PATH))

    def evictions(self, one: Pod) -> int:
        """Return how often a pod was to be evicted."""
        return self.api.asked.count(("POST", f"{self.path_of(one)}/eviction"))

    def events(self, one: Pod) -> list[str]:
        """Return what was said of a pod."""
        found = self.api.under(f"/api/v1/namespaces/{one.namespace}/events")
        return [it["message"] for it in found if it["involvedObject"]["uid"] == one.uid]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Serve it; its kubeconfig is below *folder*."""
    with small_api.running() as (api, connection):
        small_api.write_kubeconfig(folder / "kubeconfig", connection)
        made = Cluster(api, folder / "kubeconfig")
        # Among what refers to each other, whichever is collected first may be its socket.
        with contextlib.closing(made.connection):
            yield made
