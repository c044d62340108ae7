"""Options of the commands that talk to the agent of this node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

STATE = "/var/lib/pyvgpu"


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add the option for the agent's state folder."""
    parser.add_argument(
        "--state",
        metavar="DIR",
        default=STATE,
        help="the state folder of the node's agent (%(default)s)",
    )


def state(options: argparse.Namespace) -> Path:
    """Return the state folder of the node's agent."""
    return Path(options.state)
