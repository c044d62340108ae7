"""`pyvgpu doctor`: what is here, what is missing, how to get it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyvgpu
from pyvgpu import doctor, errors

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_DESCRIPTION = """\
Look at the driver, the devices, the kernel and pyvgpu's own build, and say for everything
that is missing how to get it. The exit code is 69 if `pyvgpu run` cannot work here at all,
not even with --simulate, else 0.
"""
_EXAMPLES = """\
examples:
  pyvgpu doctor
  pyvgpu doctor --driver-libraries /opt/driver/lib
  pyvgpu doctor --json
"""
_COLOURS = {
    doctor.State.OK: "green",
    doctor.State.LIMITED: "yellow",
    doctor.State.MISSING: "red",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu doctor`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="the same rows for programs")
    parser.add_argument(
        "--driver-libraries",
        metavar="DIR",
        type=Path,
        help="the folder of libcuda.so.* and libnvidia-ml.so.*, where it is not a usual one",
    )


def run(options: argparse.Namespace) -> int:
    """Show what was found; 69 if no run is possible."""
    rows = doctor.examine(doctor.Scene(os.environ, options.driver_libraries))
    verdict = doctor.judge(rows)
    if options.json:
        document = {
            "pyvgpu": pyvgpu.__version__,
            "run": dataclasses.asdict(verdict),
            "checks": [dataclasses.asdict(row) for row in rows],
        }
        print(json.dumps(document, indent=2))
    else:
        _show(rows, verdict)
    return 0 if verdict.real or verdict.simulated else errors.UnavailableError.exit_code


def _show(rows: Sequence[doctor.Row], verdict: doctor.Verdict) -> None:
    from rich import box, console, table, text

    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("check", "state", "found, and what to do"):
        shown.add_column(heading, no_wrap=heading != "found, and what to do", overflow="fold")
    for row in rows:
        said = text.Text(row.found)
        if row.remedy:
            said.append(f"\n→ {row.remedy}", style="bold")
        shown.add_row(row.check, text.Text(row.state, style=_COLOURS[row.state]), said)
    out = console.Console(highlight=False)
    out.print(shown)
    out.print(_sentence(verdict))


def _sentence(verdict: doctor.Verdict) -> str:
    if verdict.real:
        return "`pyvgpu run` works on this machine's devices" + (
            ", and on simulated ones." if verdict.simulated else "; simulated ones are missing."
        )
    if verdict.simulated:
        return "`pyvgpu run` works with --simulate only, such as --simulate h100."
    return "`pyvgpu run` does not work here: see what is missing above."
