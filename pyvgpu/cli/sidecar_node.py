"""`pyvgpu sidecar-node`: stops sidecars on one node at the controller's request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import cluster_options, table
from pyvgpu.http import endpoints
from pyvgpu.kube import leases
from pyvgpu.machine.container_runtimes import SOCKETS

if TYPE_CHECKING:
    import argparse

FOLDER = "/run/pyvgpu/sidecars"

_DESCRIPTION = """\
Stop sidecars of pods on this node when `pyvgpu sidecar-controller` requests it in the pod: with
preStop hook, STOPSIGNAL and the sidecar's own grace period. Each request is first checked against
the container runtime.
"""
_EXAMPLES = """\
examples:
  pyvgpu sidecar-node --node "$NODE_NAME"
  pyvgpu sidecar-node --node node-1 --runtime /run/crio/crio.sock --listen 9471
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu sidecar-node`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--node", metavar="NAME", help="the name of this node ($NODE_NAME)")
    add("--runtime", metavar="SOCKET", help="the container runtime's socket (the usual paths)")
    add(
        "--folder",
        metavar="DIR",
        default=FOLDER,
        help="folder for the records of stops in progress (%(default)s)",
    )
    cluster_options.add_options(parser)
    cluster_options.add_protected(parser)


def run(options: argparse.Namespace) -> int:
    """Act until a termination signal arrives."""
    name = options.node or os.environ.get("NODE_NAME") or ""
    table.object_name("node-1")(name, "--node")
    with errors.needing("grpcio", "kubernetes"):
        from pyvgpu.controller.sidecar import cri, node_agent
    settings = cluster_options.sidecar_settings(options)
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller.sidecar.meters import NodeMeter
    meter = NodeMeter()
    api = cluster_options.connect(options, meter)
    runtime = cri.RuntimeClient(options.runtime or _socket())
    # The node's name is the holder, so that a restarted process keeps the lease.
    lease = leases.Lease(
        api,
        cluster_options.namespace(options),
        leases.NODE + name,
        name,
        settings.lease_seconds,
    )
    node = node_agent.NodeAgent(
        api, runtime, node_agent.NodePart(name, Path(options.folder)), settings, meter
    )
    with endpoints.serving(options.listen, endpoints.Pages(meter.text, node.alive, node.ready)):
        node.run(lease, cluster_options.stop_on_signals())
    runtime.close()
    return 0


def _socket() -> str:
    for path in SOCKETS:
        if Path(path).is_socket():
            return path
    raise errors.UnavailableError(
        f"no container runtime listens at {', '.join(SOCKETS)}: give --runtime SOCKET"
    )
