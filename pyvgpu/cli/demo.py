"""`pyvgpu demo`: quota enforcement for six tenants of one simulated device."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyvgpu import errors, models
from pyvgpu.demo import assertions, html_report, live_display, play, script
from pyvgpu.quantity import format_size
from pyvgpu.simulation import machines

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from pyvgpu.demo.observations import DemoPlan

DEFAULT_SECONDS = "12"
_DESCRIPTION = """\
Start CUDA programs on one simulated device, each by `pyvgpu run` with a quota of its own: one
that stays within its quota, one that allocates more and more, one that is killed while it holds
memory, one that requests more than is free, two that want all of the device's time, with shares of
30 and 70, and one that idles. Watch their ledgers and the driver's own count, and judge the claims
at the end. The exit code is 1 if a claim failed. Needs no GPU.
"""
_EXAMPLES = """\
examples:
  pyvgpu demo
  pyvgpu demo --seconds 20 --simulate t4
  pyvgpu demo --json
  pyvgpu demo --report report.html
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu demo`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "--seconds",
        metavar="N",
        default=DEFAULT_SECONDS,
        help=f"how long it lasts, {script.SHORTEST} to {script.LONGEST} ({DEFAULT_SECONDS})",
    )
    add("--simulate", metavar="MODEL", default="h100", help="the simulated device (h100)")
    add("--json", action="store_true", help="print observations and verdicts as JSON")
    add("--report", metavar="FILE.html", type=Path, help="write an HTML report with charts")


def run(options: argparse.Namespace) -> int:
    """Run the demonstration; 1 if a claim failed."""
    seconds = _parse_seconds(options.seconds)
    wanted = options.simulate
    if wanted not in models.BY_KEY and not machines.is_file(wanted):
        raise errors.UsageError(
            f"--simulate {wanted!r}: must be one of {', '.join(models.BY_KEY)}, such as h100, or "
            f"the file of a machine, such as h100{machines.SUFFIX}"
        )
    if len(machines.parse_machine(wanted)) != 1:
        raise errors.UsageError(f"--simulate {wanted!r}: must be of one device, such as h100")
    if options.report is not None:
        html_report.check_possible(options.report)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if options.json:
        seen = play.play(seconds, options.simulate, lambda _: live_display.Nowhere())
        found = assertions.judge(seen)
        print(assertions.document(seen, found))
    else:
        console = _console()
        seen = play.play(seconds, options.simulate, lambda plan: _screen(plan, console))
        found = assertions.judge(seen)
        console.print()
        console.print(live_display.verdicts(found))
    if options.report is not None:
        html_report.write(options.report, seen, found)
    return 0 if all(verdict.holds for verdict in found) else 1


def _parse_seconds(text: str) -> int:
    shortest, longest = script.SHORTEST, script.LONGEST
    if not re.fullmatch(r"[0-9]{1,3}", text) or not shortest <= int(text) <= longest:
        raise errors.UsageError(
            f"--seconds {text[:40]!r}: must be whole seconds from {shortest} to {longest}, "
            f"such as {DEFAULT_SECONDS}"
        )
    return int(text)


def _console() -> Console:
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=live_display.WIDTH, force_terminal=False)


def _screen(plan: DemoPlan, console: Console) -> live_display.Screen:
    console.print(
        f"one device, {plan.device}, {format_size(plan.memory)}; six tenants; {plan.seconds} s\n"
    )
    if console.is_terminal and not console.is_dumb_terminal:
        return live_display.Alive(plan, console)
    return live_display.Lines(plan, console)


def _end(number: int, _: object) -> NoReturn:
    """Unwind the stack, so that everything is cleaned up, and exit with the signal's code."""
    sys.exit(128 + number)
