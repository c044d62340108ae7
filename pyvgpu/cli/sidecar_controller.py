"""`pyvgpu sidecar-controller`: ends the sidecars of pods whose work is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import cluster
from pyvgpu.controller import leases
from pyvgpu.controller.sidecar import shell

if TYPE_CHECKING:
    import argparse

LEASE = "pyvgpu-sidecar-controller"

_DESCRIPTION = """\
Watch the pods of a cluster, and end the sidecars of those whose main containers are done, so that
pod and Job end by the main containers alone. Of several that run, one acts: it holds a lease.
"""
_EXAMPLES = """\
examples:
  pyvgpu sidecar-controller
  pyvgpu sidecar-controller --kubeconfig ~/.kube/config --namespace default
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu sidecar-controller`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Wait for the lease and act until told to end, or until the lease is lost."""
    api = cluster.connect(options)
    namespace = cluster.namespace(options)
    stop = cluster.stop_on_signals()
    lease = leases.Lease(api, namespace, LEASE, cluster.identity())
    if not lease.wait(stop):
        return 0
    controller = shell.Controller(
        api, namespace, cluster.sidecar_settings(options), lambda: lease.is_held
    )
    thread = threading.Thread(target=controller.run, args=(stop,), daemon=True)
    thread.start()
    lease.keep(stop)
    if not stop.is_set():
        raise errors.UnavailableError(f"lost lease {namespace}/{LEASE}: another acts, or nobody")
    return 0
