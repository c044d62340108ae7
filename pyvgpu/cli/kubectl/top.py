"""`kubectl vgpu top`: GPU time and memory that pods use, beside their allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import cluster_options
from pyvgpu.cli.kubectl import cluster_queries
from pyvgpu.controller.kubectl import device_holders, table_rows, tables

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Show, by container or by device, the allocation (VCORE, in percent of a device's time, and
VMEMORY) and the usage of the last seconds (USED, HELD). Agents report usage through the API
server: this needs permission to get pods/proxy in their namespace; without it, usage is `-`.
"""
_EXAMPLES = """\
examples:
  kubectl vgpu top
  kubectl vgpu top pods -A
  kubectl vgpu top pods -n vision -l app=train -o wide
  kubectl vgpu top nodes
"""
_KINDS = {"pods": "pods", "pod": "pods", "nodes": "nodes", "node": "nodes"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kubectl vgpu top`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("kind", metavar="pods|nodes", nargs="?", default="pods", help="(pods)")
    cluster_queries.add_options(parser, of_pods=True)
    cluster_options.add_agents(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table; an empty one is not an error."""
    kind = _KINDS.get(options.kind)
    if kind is None:
        raise errors.UsageError(
            f"{options.kind!r}: must be pods or nodes, such as `kubectl vgpu top nodes`"
        )
    options.all_namespaces |= kind == "nodes"
    queries = cluster_queries.ClusterQueries(options)
    held = device_holders.read(queries.seen(queries.pods()))
    if kind == "nodes":
        there = held.devices
        found = table_rows.devices(there, held.parts, queries.reports(None) if there else {})
        queries.print(("devices", tables.DEVICES, found))
    else:
        nodes = {part.node for part in held.parts}
        found = table_rows.used(held.parts, queries.reports(nodes) if nodes else {})
        queries.print(("parts", tables.USED, found))
    if not found:
        queries.say_nothing_found("devices" if kind == "nodes" else "pods with devices")
    return 0
