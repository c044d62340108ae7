"""`pyvgpu sidecar-controller`: ends the sidecars of pods whose work is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import cluster_options
from pyvgpu.controller.sidecar import shell
from pyvgpu.http import endpoints
from pyvgpu.kube import leases

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Watch the pods of a cluster, and end the sidecars of pods whose main containers are done, so that
the main containers alone decide when pod and Job end. Of several replicas only the leader acts:
the one that holds the lease.
"""
_EXAMPLES = """\
examples:
  pyvgpu sidecar-controller
  pyvgpu sidecar-controller --kubeconfig ~/.kube/config --namespace default
  pyvgpu sidecar-controller --config /etc/pyvgpu/sidecars.yaml --listen [::]:9470
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu sidecar-controller`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster_options.add_options(parser)
    cluster_options.add_protected(parser)


def run(options: argparse.Namespace) -> int:
    """Watch until a termination signal arrives, and act while we hold the lease."""
    settings = cluster_options.sidecar_settings(options)
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller.sidecar.meters import ControllerMeter
    meter = ControllerMeter()
    api = cluster_options.connect(options, meter)
    namespace = cluster_options.namespace(options)
    stop = cluster_options.stop_on_signals()
    lease = leases.Lease(api, namespace, leases.CONTROLLER, cluster_options.identity())
    controller = shell.Controller(api, namespace, settings, lambda: lease.is_held, meter)
    shown = endpoints.Pages(meter.text, controller.alive, controller.ready)
    with endpoints.serving(options.listen, shown):
        thread = threading.Thread(target=controller.run, args=(stop,), daemon=True)
        thread.start()
        lease.act(stop)
        thread.join()
    return 0
