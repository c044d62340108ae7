"""`kubectl vgpu ps`: which pods hold which devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.cli.kubectl import asking
from pyvgpu.controller.people import holders, rows, tables

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
List what containers hold of devices: of which device of which node how much time, in hundredths
of it (VCORE), and memory. Of a pod with a claim it is the pod's. That takes the right to list the
pods; and nodes, resourceclaims and resourceslices for what agents and claims have placed.
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
    asking.add_options(parser, of_pods=True)


def run(options: argparse.Namespace) -> int:
    """List them; that there are none is no error."""
    asked = asking.Asked(options)
    held = rows.held(holders.read(asked.seen(asked.pods())).parts)
    asked.print(("parts", tables.HELD, held))
    if not held:
        asked.say_nothing_found("pods with devices")
    return 0
