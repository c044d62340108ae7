"""An agent of the e2e cluster on a node with a GPU in MIG mode."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import agents
import mig_node

from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def in_place_of(running: agents.Agent, folder: Path, devices: str) -> Iterator[agents.Agent]:
    """Yield an agent for these simulated *devices*, not started, in place of the *running* one.

    At the end it has no grants any more, and is stopped.
    """
    running.until_idle()
    running.stop()
    made = agents.Agent(folder, devices)
    mig_node.capabilities(made.root / "proc")
    try:
        yield made
        made.until_idle()
    finally:
        made.stop()


def profiles(agent: agents.Agent) -> list[str]:
    """Return the profiles of the instances on an agent's GPUs, in order."""
    return sorted(one.profile for one in simulator.mig_state(agent.machine).instances)
