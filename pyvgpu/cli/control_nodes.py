"""`pyvgpu control-nodes`: gives the node agent, and nobody else, the nodes of all devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyvgpu import ending, errors, log
from pyvgpu.cli import places, table

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Give the node agent the nodes of this node's devices, so that its container needs no privilege to
open them: as pyvgpu.io/control, which one pod can have, of the agent's namespace alone. Needs CDI.
"""
_EXAMPLES = """\
examples:
  pyvgpu control-nodes --namespace pyvgpu-agent
  pyvgpu control-nodes --driver-root /run/nvidia/driver
"""
OPTIONS = table.Group(
    "where things are on the node",
    (
        table.Option(
            "--namespace", "NAME", "namespace", "the namespace of the agent ($POD_NAMESPACE)"
        ),
        *places.OPTIONS,
        table.Option("--verbose", "", "verbose", "say more"),
    ),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu control-nodes`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    OPTIONS.add(parser)


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until told to end."""
    found = OPTIONS.read(options)
    verbose = found.pop("verbose", False)
    found["namespace"] = found.get("namespace") or os.environ.get("POD_NAMESPACE")
    if not found["namespace"]:
        raise errors.UsageError("--namespace '': must name the agent's, such as pyvgpu-agent")
    from pyvgpu.deviceplugin import control

    log.begin(verbose)
    one = control.Control(control.Settings(**found))
    ending.on_signals(one.stop)
    one.run()
    return 0
