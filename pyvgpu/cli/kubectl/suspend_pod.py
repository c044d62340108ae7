"""`kubectl vgpu suspend`: move the device memory of a pod to host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.allocator import suspensions
from pyvgpu.cli.kubectl import suspend_request

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Suspend a pod: its programs wait in their next CUDA call, and its device memory moves to host
memory, until `kubectl vgpu resume`. With --keep it keeps its reservation of the device; without,
other pods may use its room, which needs an oversubscribed device (the chart's value
oversubscription.ratio). Its containers' memory limits must have room for what they hold on the
device. The node's agent does it, if the chart's value agent.suspend is true; this needs permission
to patch the pod.
"""
_EXAMPLES = """\
examples:
  kubectl vgpu suspend notebook-0
  kubectl vgpu suspend notebook-0 --keep -n vision --wait
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kubectl vgpu suspend`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    suspend_request.add_options(parser)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep its reservation; without, it is resumed only when there is room",
    )


def run(options: argparse.Namespace) -> int:
    """Request it, and with --wait print what was moved."""
    value = suspensions.KEEP if options.keep else suspensions.RELEASE
    print(suspend_request.SuspensionRequest(options).send(value))
    return 0
