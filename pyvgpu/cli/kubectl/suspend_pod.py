"""`kubectl vgpu suspend`: move the device memory of a pod to host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import suspensions
from pyvgpu.cli.kubectl import suspending

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Suspend a pod: its programs wait in their next CUDA call, and its device memory moves to host
memory, until `kubectl vgpu resume`. It keeps its reservation of the device. Its containers' memory
limits must have room for what they hold on the device. The node's agent does it, if the chart's
value agent.suspend is true; this needs permission to patch the pod.
"""
_EXAMPLES = """\
examples:
  kubectl vgpu suspend notebook-0 --keep
  kubectl vgpu suspend notebook-0 --keep -n vision --wait
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kubectl vgpu suspend`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    suspending.add_options(parser)
    parser.add_argument(
        "--keep", action="store_true", help="keep its reservation, as every suspended pod does"
    )


def run(options: argparse.Namespace) -> int:
    """Request it, and with --wait print what was moved."""
    if not options.keep:
        raise errors.UsageError(
            f"--keep: must be given, since a suspended pod keeps its reservation: kubelet cannot "
            f"give it to another pod; such as kubectl vgpu suspend {options.pod} --keep"
        )
    print(suspending.PodRequest(options).send(suspensions.KEEP))
    return 0
