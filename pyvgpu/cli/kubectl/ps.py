"""`kubectl vgpu ps`: list pods and the devices that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.cli.kubectl import cluster_queries
from pyvgpu.controller.kubectl import device_holders, table_rows, tables

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
List the devices that containers hold: node, device, percent of the device's time (VCORE), and
memory. The share of a claim is shown for its pod. This needs permission to list pods;
also nodes, for names of devices and shares that agents have placed; and resourceclaims and
resourceslices, for the shares of claims.
"""
_EXAMPLES = """\
examples:
  kubectl vgpu ps
  kubectl vgpu ps -A
  kubectl vgpu ps -n vision -l app=train -o wide
  kubectl vgpu ps -A -o json
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kubectl vgpu ps`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster_queries.add_options(parser, of_pods=True)


def run(options: argparse.Namespace) -> int:
    """Print the list; an empty one is not an error."""
    queries = cluster_queries.ClusterQueries(options)
    held = table_rows.held(device_holders.read(queries.seen(queries.pods())).parts)
    queries.print(("parts", tables.HELD, held))
    if not held:
        queries.say_nothing_found("pods with devices")
    return 0
