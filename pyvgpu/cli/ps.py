"""`pyvgpu ps`: the active runs of this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu.cli import sheet, views
from pyvgpu.machine import reservations, users
from pyvgpu.run import runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_DESCRIPTION = """\
List the active runs of all users on this machine, with their quotas and the memory that they hold.
`pyvgpu set` takes a run's name.
"""
_EXAMPLES = """\
examples:
  pyvgpu ps
  pyvgpu ps --json
"""
_COLUMNS = (
    sheet.Column("run", least=16),
    sheet.Column("user", rank=3),
    sheet.Column("pid", rank=2),
    sheet.Column("device", rank=1),
    sheet.Column("vcore", right=True),
    sheet.Column("vmemory", right=True),
    sheet.Column("held", right=True),
    sheet.Column("processes", right=True, rank=5),
    sheet.Column("age", right=True, rank=4),
    sheet.Column("command", least=8, rank=6),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu ps`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the list; an empty one is not an error."""
    devices = runs.RunWatch().see(runs.look(reservations.Books()))
    if options.json:
        print(json.dumps({"runs": views.documents(devices)}, indent=2))
    else:
        _show(devices)
    return 0


def _show(devices: Sequence[runs.DeviceView]) -> None:
    from rich.text import Text

    if not devices:
        print(views.NO_RUNS)
        return
    now = time.time()
    rows = [
        tuple(
            map(
                Text,
                (
                    part.name,
                    users.name(part.uid),
                    str(part.pid),
                    views.short(device),
                    views.vcore(part),
                    views.size(part.limits.vmemory),
                    views.held(part),
                    str(len(part.processes)),
                    views.age(now - part.created),
                    Path(part.command).name,
                ),
            )
        )
        for device in devices
        for part in device.parts
    ]
    console = views.console()
    console.print(sheet.table(_COLUMNS, rows, console.width))
    if note := views.note(devices):
        console.print(note, style="red")
