"""`pyvgpu ps`: the runs that live on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import promises, runs
from pyvgpu.cli import views

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_DESCRIPTION = """\
List the runs of all users that live on this machine: what each is held to and what it holds.
The name is what `pyvgpu set` takes.
"""
_EXAMPLES = """\
examples:
  pyvgpu ps
  pyvgpu ps --json
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu ps`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    """List them; an empty list is no error."""
    devices = runs.Watch().see(runs.look(promises.Books()))
    if options.json:
        print(json.dumps({"runs": views.documents(devices)}, indent=2))
    else:
        _show(devices)
    return 0


def _show(devices: Sequence[runs.DeviceView]) -> None:
    from rich import box, table, text

    if not devices:
        print(views.NOBODY)
        return
    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "user", "pid", "device"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("vcore", "vmemory", "held", "processes", "age"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("command", overflow="fold")
    now = time.time()
    for device in devices:
        for part in device.parts:
            shown.add_row(
                part.name,
                views.user(part.uid),
                str(part.pid),
                views.short(device),
                views.vcore(part),
                views.size(part.limits.vmemory),
                views.size(part.held),
                str(len(part.processes)),
                views.age(now - part.created),
                text.Text(Path(part.command).name),
            )
    views.console().print(shown)
