"""Options of the commands that speak with the agent of this node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

STATE = "/var/lib/pyvgpu"


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where the agent is."""
    parser.add_argument(
        "--state",
        metavar="DIR",
        default=STATE,
        help="the folder of the node's agent (%(default)s)",
    )


def state(options: argparse.Namespace) -> Path:
    """Return the folder of the node's agent."""
    return Path(options.state)
