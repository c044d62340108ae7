"""`pyvgpu control-nodes`: device plugin that gives /dev/nvidia* to the node agent alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyvgpu import log
from pyvgpu.cli import places, table, termination

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Give the node agent the device nodes of this node (/dev/nvidia*), so that its container can open
them without being privileged. They are the resource pyvgpu.io/control, which one pod can have, and
only in the agent's namespace. Needs CDI.
"""
_EXAMPLES = """\
examples:
  pyvgpu control-nodes --namespace pyvgpu-agent
  pyvgpu control-nodes --driver-root /run/nvidia/driver
"""
OPTIONS = table.Group(
    "paths on the node",
    (
        table.Option(
            "--namespace",
            "NAME",
            "namespace",
            "the namespace of the agent ($POD_NAMESPACE)",
            table.namespace,
        ),
        *places.OPTIONS,
        table.Option("--verbose", "", "verbose", "log more"),
    ),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu control-nodes`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    OPTIONS.add(parser)


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until a termination signal arrives."""
    found = OPTIONS.read(options)
    verbose = found.pop("verbose", False)
    if "namespace" not in found:
        given = os.environ.get("POD_NAMESPACE", "")
        found["namespace"] = table.namespace(given, "--namespace")
    from pyvgpu.deviceplugin.plugin import device_nodes

    log.begin(verbose)
    one = device_nodes.DeviceNodesPlugin(device_nodes.DeviceNodeSettings(**found))
    termination.on_signals(one.stop)
    one.run()
    return 0
