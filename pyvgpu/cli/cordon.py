"""`pyvgpu cordon`: stop placing new containers on a device of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.cli import agent_options
from pyvgpu.deviceplugin import admin_socket

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Place no new container on a device of this node; containers that already have a share keep it. The
cordon lasts until --undo, across restarts of the agent and the node. Needs root, on the node.
"""
_EXAMPLES = """\
examples:
  pyvgpu cordon GPU-8c9f5a3e-1b2d-4c6f-9a7e-0d1c2b3a4f5e
  pyvgpu cordon GPU-8c9f5a3e-1b2d-4c6f-9a7e-0d1c2b3a4f5e --undo
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu cordon`."""
    parser.usage = "pyvgpu cordon UUID [options]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("uuid", metavar="UUID", help="the device, as nvidia-smi -L shows it")
    add("--undo", action="store_true", help="allow new containers on it again")
    agent_options.add_state(parser)


def run(options: argparse.Namespace) -> int:
    """Send the order to the agent, and print its answer."""
    order = {"order": "cordon", "uuid": options.uuid, "undo": options.undo}
    print(admin_socket.send(agent_options.state(options), order))
    return 0
