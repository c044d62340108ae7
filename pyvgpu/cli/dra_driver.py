"""`pyvgpu dra-driver`: the node agent as a DRA driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.cli import device_plugin
from pyvgpu.deviceplugin import allocation_api

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Offer the devices of this node by dynamic resource allocation (Kubernetes 1.34 and newer), in a
ResourceSlice from which claims get vcore and vmemory. It is `pyvgpu device-plugin` with
--allocation-api dra, and takes the same options; --allocation-api UUID=plugin leaves a device to
the device plugin API.
"""
_EXAMPLES = """\
examples:
  pyvgpu dra-driver --node "$NODE_NAME"
  pyvgpu dra-driver --allocation-api GPU-8c9f5a3e-0000-0000-0000-000000000000=plugin
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu dra-driver`."""
    device_plugin.prepare_parser(parser)
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until a termination signal arrives."""
    return device_plugin.serve(options, allocation_api.Api.DRA)
