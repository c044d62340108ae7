"""`pyvgpu ps`: the active runs of this machine."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from pyvgpu.cli import sheet, views
from pyvgpu.machine import reservations
from pyvgpu.run import runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_DESCRIPTION = """\
List the active runs of all users on this machine, with their quotas and the memory that they hold.
`pyvgpu set` takes a run's name. Runs of other users are called USER/RUN, and only their programs
are shown, without arguments.
"""
_EXAMPLES = """\
examples:
  pyvgpu ps
  pyvgpu ps --json
  pyvgpu ps --quiet
"""
_COLUMNS = (
    sheet.Column("run", least=16),
    sheet.Column("pid", rank=3),
    sheet.Column("device", rank=2),
    sheet.Column("vcore", right=True),
    sheet.Column("vmemory", right=True),
    sheet.Column("held", right=True),
    sheet.Column("processes", right=True, rank=5),
    sheet.Column("state", rank=7),
    sheet.Column("age", right=True, rank=4),
    sheet.Column("command", least=12, rank=1),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu ps`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the same as JSON")
    form.add_argument("--quiet", action="store_true", help="print only the runs' names")


def run(options: argparse.Namespace) -> int:
    """Print the list; an empty one is not an error."""
    devices = runs.RunWatch().see(runs.sample(reservations.Registries()))
    if options.json:
        print(json.dumps({"runs": views.documents(devices)}, indent=2))
    elif options.quiet:
        for name in dict.fromkeys(part.full_name for device in devices for part in device.parts):
            print(name)
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
                    part.full_name,
                    str(part.pid),
                    views.short(device),
                    views.vcore(part),
                    views.size(part.limits.vmemory),
                    views.held(part),
                    str(len(part.processes)),
                    part.state,
                    views.age(now - part.created),
                    views.command(part),
                ),
            )
        )
        for device in devices
        for part in device.parts
    ]
    console = views.console(views.UNLIMITED)
    with console.capture() as table:
        console.print(sheet.table(_COLUMNS, rows, console.width))
    print("\n".join(line.rstrip() for line in table.get().splitlines()))
    if note := views.note(devices):
        console.print(note, style="red")
