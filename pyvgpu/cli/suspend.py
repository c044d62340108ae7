"""`pyvgpu suspend`: move the device memory of a run to host memory, and release its share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.machine import quota_socket, reservations
from pyvgpu.run import suspend_operation, suspend_socket, suspender, suspension

if TYPE_CHECKING:
    import argparse

LONGEST_SECONDS = 3600.0
_DESCRIPTION = """\
Suspend a run: its processes wait in their next CUDA call, its device memory moves to host memory,
and other runs may reserve its share, until `pyvgpu resume`. All of its processes are suspended or
none. It needs driver release 570 or later, and as much free host memory as the run holds on the
device. A run that is suspended already stays so. Only the run's user and root may suspend it.
"""
_EXAMPLES = """\
examples:
  pyvgpu suspend train
  pyvgpu suspend train --keep
  pyvgpu suspend train --host-memory 32GiB --timeout 60
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu suspend`."""
    parser.usage = "pyvgpu suspend RUN [options]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("name", metavar="RUN", help="the run, as in `pyvgpu ps`")
    add("--keep", action="store_true", help="keep its reservation: resume then always has room")
    add(
        "--host-memory",
        metavar="SIZE",
        help="refuse if it needs more host memory than this, such as 32GiB (what is available)",
    )
    add(
        "--timeout",
        metavar="SECONDS",
        default="10",
        help="how long to wait for its work on the device to end, up to 3600 (10)",
    )


def run(options: argparse.Namespace) -> int:
    """Suspend the run and print what was moved."""
    order = suspend_operation.SuspendOrder(
        suspension.DesiredState.SUSPENDED,
        options.keep,
        None
        if options.host_memory is None
        else quantity.parse_size(options.host_memory, "--host-memory"),
        _parse_seconds(options.timeout),
    )
    live = reservations.Registries().live()
    suspender.end_unsupervised(live)
    found = quota_socket.find(options.name, live)
    print(suspend_socket.send(found, order))
    return 0


def _parse_seconds(text: str) -> float:
    valid = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) is not None
    if not valid or not 0 < float(text) <= LONGEST_SECONDS:
        raise errors.UsageError(
            f"--timeout {text[:40]!r}: must be seconds above 0 and up to {LONGEST_SECONDS:g}, "
            "such as 10"
        )
    return float(text)
