"""`pyvgpu claim-controller`: garbage-collects the claim templates that the webhook creates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import cluster_options
from pyvgpu.controller.claims import template_collector
from pyvgpu.http import endpoints
from pyvgpu.kube import leases, threads

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Delete the ResourceClaimTemplates that `pyvgpu webhook --claims` created and no pod refers to any
more. Of several replicas only the leader acts: the one that holds the lease.
"""
_EXAMPLES = """\
examples:
  pyvgpu claim-controller
  pyvgpu claim-controller --kubeconfig ~/.kube/config --namespace default --listen 9473
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu claim-controller`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster_options.add_place(parser)


def run(options: argparse.Namespace) -> int:
    """Sweep until a termination signal arrives, while we hold the lease."""
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller.claims.claim_metrics import ClaimMeter
    meter = ClaimMeter()
    api = cluster_options.connect(options, meter)
    stop = cluster_options.stop_on_signals()
    lease = leases.Lease(
        api, cluster_options.namespace(options), leases.CLAIMS, cluster_options.identity()
    )
    meter.gauge(
        "pyvgpu_claim_acts", "1 if this replica holds the lease.", lambda: float(lease.is_held)
    )
    collector = template_collector.TemplateCollector(
        api, lambda: lease.is_held, meter.collected.inc
    )
    parts = threads.Threads()
    shown = endpoints.Pages(meter.text, parts.alive)
    with endpoints.serving(options.listen, shown):
        (sweeps,) = parts.start(lambda: collector.run(stop))
        lease.act(stop)
        sweeps.join()
    return 0
