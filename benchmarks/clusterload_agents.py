"""The API clients of many nodes' agents in one process, for clusterload.py.

Arguments: a kubeconfig, the first node's number, and how many there are. Each node has what its
agent and its node part of sidecars have: the watches of its node, of its pods and of its pods with
sidecars, with connections of their own, and a lease that is renewed three times in its duration.
It says "ready" when all lists were read; it ends with its standard input.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time

import schedulerworld as world

from pyvgpu import names
from pyvgpu.controller.sidecar import controller_settings, node_agent, sidecar_pods
from pyvgpu.deviceplugin.cluster import node_pods, own_node
from pyvgpu.kube import apiserver, informer, leases

NAMESPACE = "pyvgpu"
_STACK_BYTES = 512 << 10
_READY_SECONDS = 600.0


class NodeClient:
    """The watches and the lease of one node."""

    def __init__(self, api: apiserver.ApiServer, node: str) -> None:
        self._own = own_node.OwnNode(api, node)
        self._pods = node_pods.Pods(api, node)
        query = {
            "labelSelector": f"{names.SIDECAR_LABEL}={names.SIDECAR_MANAGED}",
            "fieldSelector": f"spec.nodeName={node}",
        }
        self._sidecars = informer.Informer(
            api, "/api/v1/pods", query, sidecar_pods.read, lambda _: None
        )
        seconds = controller_settings.SidecarSettings().lease_seconds
        self.lease = leases.Lease(api, NAMESPACE, leases.NODE + node, node, seconds)

    def start(self) -> None:
        """List, then watch in threads."""
        self._own.sync()
        self._pods.sync()
        self._sidecars.sync()
        stop = threading.Event()
        for part in (self._own.run, self._pods.run, lambda: self._sidecars.run(stop)):
            threading.Thread(target=part, daemon=True).start()


def main() -> None:
    """Act as the agents until the end of the standard input."""
    kubeconfig, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    threading.stack_size(_STACK_BYTES)
    clients = []
    for number in range(first, first + count):
        client = NodeClient(apiserver.connect(kubeconfig), world.name_of(number))
        client.start()
        client.lease.try_to_hold()
        clients.append(client)
    gc.freeze()
    threading.Thread(target=_renew, args=(clients,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


def _renew(clients: list[NodeClient]) -> None:
    """Renew each lease in its turn, at the pace of the node part."""
    period = controller_settings.SidecarSettings().lease_seconds / node_agent.RENEWALS
    random.Random(3).shuffle(clients)
    while True:
        for client in clients:
            time.sleep(period / len(clients))
            client.lease.try_to_hold()


if __name__ == "__main__":
    main()
