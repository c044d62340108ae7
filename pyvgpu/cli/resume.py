"""`pyvgpu resume`: reserve room on the device again, and continue a suspended run there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.machine import quota_socket, reservations
from pyvgpu.run import suspend_operation, suspend_socket, suspender, suspension

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Resume a suspended run: reserve its share again, move its memory back to the device, and let its
processes continue. If other runs have reserved the room by now, it stays suspended, and the
message names them. A run that is running already stays so. Only the run's user and root may
resume it.
"""
_EXAMPLES = """\
examples:
  pyvgpu resume train
  pyvgpu resume alice/train                      (as root)
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu resume`."""
    parser.usage = "pyvgpu resume RUN"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("name", metavar="RUN", help="the run, as in `pyvgpu ps`")


def run(options: argparse.Namespace) -> int:
    """Resume the run."""
    live = reservations.Registries().live()
    suspender.end_unsupervised(live)
    found = quota_socket.find(options.name, live)
    print(
        suspend_socket.send(found, suspend_operation.SuspendOrder(suspension.DesiredState.RUNNING))
    )
    return 0
