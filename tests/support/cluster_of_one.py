"""Fake API server with one node and the pods that a fake kubelet has admitted there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import small_api

from pyvgpu import names
from pyvgpu.allocator import annotations
from pyvgpu.deviceplugin.cluster import node_pods
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
    """The objects in the API server, and what the agent wrote to them."""

    def __init__(self, api: small_api.SmallApi, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.connection = apiserver.connect(str(kubeconfig), retry_seconds=0.0)
        self.pods = node_pods.Pods(self.connection, NODE)  # no watch: each pod is read
        api.put(_NODE_PATH, {"metadata": {"name": NODE, "uid": "uid-of-node"}})

    def add(self, one: Pod, notes: Mapping[str, str], *, owned: bool = False) -> None:
        """Add the API object of kubelet's pod *one*, with these annotations."""
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
                "containers": [
                    {"name": container.name} for container in one.containers if not container.init
                ],
            },
        }
        self.api.put(self.path_of(one), made)

    def notes(self, one: Pod) -> dict[str, str]:
        """Return the current annotations of a pod."""
        found: dict[str, str] = self.api.read(self.path_of(one))["metadata"]["annotations"]
        return found

    def path_of(self, one: Pod) -> str:
        """Return the API path of a pod."""
        return f"/api/v1/namespaces/{one.namespace}/pods/{one.name}"

    @property
    def text(self) -> str:
        """The node's devices annotation; empty if it has none."""
        found = self.api.read(_NODE_PATH)["metadata"].get("annotations") or {}
        return str(found.get(names.NODE_DEVICES_ANNOTATION, ""))

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the node."""
        return dict(self.api.read(_NODE_PATH)["metadata"].get("labels") or {})

    @property
    def published(self) -> annotations.Published:
        """The node's devices annotation, parsed."""
        return annotations.read_node(self.text)

    def forget_published(self) -> None:
        """Replace the node object by a fresh one, as after its deletion."""
        self.api.put(_NODE_PATH, {"metadata": {"name": NODE, "uid": "uid-of-node"}})

    def times_published(self) -> int:
        """Return how often the node was patched."""
        return self.api.asked.count(("PATCH", _NODE_PATH))

    def evictions(self, one: Pod) -> int:
        """Return the number of requests to delete a pod."""
        return self.api.asked.count(("DELETE", self.path_of(one)))

    def events(self, one: Pod) -> list[str]:
        """Return the messages of a pod's events."""
        found = self.api.under(f"/api/v1/namespaces/{one.namespace}/events")
        return [event["message"] for event in found if event["involvedObject"]["uid"] == one.uid]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Serve the API; its kubeconfig is below *folder*."""
    with small_api.running() as (api, connection):
        small_api.write_kubeconfig(folder / "kubeconfig", connection)
        made = Cluster(api, folder / "kubeconfig")
        # The connection is part of a reference cycle: the collector might close its socket first.
        with contextlib.closing(made.connection):
            yield made
