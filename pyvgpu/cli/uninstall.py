"""`pyvgpu uninstall`: remove everything that pyvgpu has left on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyvgpu.machine import reservations
from pyvgpu.run import traces

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
List and remove what pyvgpu has left on this machine: copies of the driver's libraries, simulated
machines, reservations, CDI specifications of `pyvgpu cdi`, and completion scripts. Root removes
those of all users, except in their homes. While a run is active nothing is removed. The program
itself stays; the last line says how to remove it.
"""
_EXAMPLES = """\
examples:
  pyvgpu uninstall --dry-run
  pyvgpu uninstall
  sudo env "PATH=$PATH" pyvgpu uninstall
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu uninstall`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("--dry-run", action="store_true", help="list it, and remove nothing")


def run(options: argparse.Namespace) -> int:
    """Remove the traces, unless a run is active."""
    places = traces.MachinePlaces()
    registries = reservations.Registries(*places.registries)
    if options.dry_run:
        for trace in traces.find(os.environ, places):
            point = traces.mount_point(trace)
            first = "" if point is None else f"; first unmount {point}"
            print(f"would remove {trace.path}: {trace.what}{first}")
    else:
        with registries.idle():  # and none starts meanwhile
            for trace in traces.find(os.environ, places):
                traces.remove(trace)
                print(f"removed {trace.path}: {trace.what}")
    print(f"the program itself: {sys.executable} -m pip uninstall pyvgpu")
    return 0
