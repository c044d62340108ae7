"""`kubectl vgpu resume`: move the device memory of a suspended pod back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.cli.kubectl import suspend_request

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Resume a suspended pod: its device memory moves back, unchanged, and its programs continue. Without
room on the device it stays suspended, and the agent tries again; the pod's events have the reason.
This needs permission to patch the pod.
"""
_EXAMPLES = """\
examples:
  kubectl vgpu resume notebook-0
  kubectl vgpu resume notebook-0 -n vision --wait --timeout 60
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kubectl vgpu resume`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    suspend_request.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Request it, and with --wait wait for it."""
    print(suspend_request.SuspensionRequest(options).send(None))
    return 0
