"""`kubectl vgpu top`: what pods use of devices, against what they were promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import cluster
from pyvgpu.cli.kubectl import asking
from pyvgpu.controller.people import holders, rows, tables

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Show, by container or by device, what was promised (VCORE, in hundredths of a device's time, and
VMEMORY) and what was used in the last seconds (USED, HELD). What is used agents tell, through the
API server: that takes the right to get pods/proxy in their namespace; without it, it is `-`.
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
    asking.add_options(parser, of_pods=True)
    cluster.add_agents(parser)


def run(options: argparse.Namespace) -> int:
    """Show them; that there are none is no error."""
    kind = _KINDS.get(options.kind)
    if kind is None:
        raise errors.UsageError(
            f"{options.kind!r}: must be pods or nodes, such as `kubectl vgpu top nodes`"
        )
    options.all_namespaces |= kind == "nodes"
    asked = asking.Asked(options)
    held = holders.read(asked.seen(asked.pods()))
    if kind == "nodes":
        there = held.devices
        found = rows.devices(there, held.parts, asked.told(None) if there else {})
        asked.print(("devices", tables.DEVICES, found))
    else:
        nodes = {part.node for part in held.parts}
        found = rows.used(held.parts, asked.told(nodes) if nodes else {})
        asked.print(("parts", tables.USED, found))
    if not found:
        asked.say_nothing_found("devices" if kind == "nodes" else "pods with devices")
    return 0
