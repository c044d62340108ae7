"""`pyvgpu demo`: tenants of one simulated device, held to their quotas or oversubscribed."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyvgpu import errors, models
from pyvgpu.demo import assertions, demo_steps, html_report, live_display, quota_demo
from pyvgpu.demo.oversubscribe import notebook_claims, notebook_demo
from pyvgpu.quantity import format_size
from pyvgpu.simulation import machines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from pyvgpu.demo.assertions import ClaimVerdict
    from pyvgpu.demo.observations import DemoPlan
    from pyvgpu.demo.oversubscribe.notebook_scenario import NotebookPlan

QUOTAS, OVERSUBSCRIBE = "quotas", "oversubscribe"
DEFAULT_SECONDS = "12"
_DESCRIPTION = """\
Start CUDA programs on one simulated device, each by `pyvgpu run` with a quota of its own: one
that stays within its quota, one that allocates more and more, one that is killed while it holds
memory, one that requests more than is free, two that want all of the device's time, with shares of
30 and 70, and one that idles. Watch their ledgers and the driver's own count, and check the claims
at the end. The exit code is 1 if a claim failed. Needs no GPU.

With `--scenario oversubscribe` the programs are notebooks that reserve more memory than the device
has: idle ones are suspended, and resumed when they are to work.
"""
_EXAMPLES = """\
examples:
  pyvgpu demo
  pyvgpu demo --seconds 20 --simulate t4
  pyvgpu demo --json
  pyvgpu demo --report report.html
  pyvgpu demo --scenario oversubscribe
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu demo`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "--scenario",
        metavar="NAME",
        default=QUOTAS,
        help=f"what to show: {QUOTAS}, or {OVERSUBSCRIBE} ({QUOTAS})",
    )
    add(
        "--seconds",
        metavar="N",
        help=f"how long it lasts, {demo_steps.SHORTEST} to {demo_steps.LONGEST} "
        f"({DEFAULT_SECONDS})",
    )
    add("--simulate", metavar="MODEL", default="h100", help="the simulated device (h100)")
    add("--json", action="store_true", help="print observations and verdicts as JSON")
    add("--report", metavar="FILE.html", type=Path, help="write an HTML report with charts")


def run(options: argparse.Namespace) -> int:
    """Run the demonstration; 1 if a claim failed."""
    if options.scenario not in (QUOTAS, OVERSUBSCRIBE):
        raise errors.UsageError(
            f"--scenario {options.scenario[:40]!r}: must be {QUOTAS} or {OVERSUBSCRIBE}"
        )
    seconds = _parse_seconds(DEFAULT_SECONDS if options.seconds is None else options.seconds)
    wanted = options.simulate
    if wanted not in models.BY_KEY and not machines.is_file(wanted):
        raise errors.UsageError(
            f"--simulate {wanted!r}: must be one of {', '.join(models.BY_KEY)}, such as h100, or "
            f"the file of a machine, such as h100{machines.SUFFIX}"
        )
    if len(machines.parse_machine(wanted)) != 1:
        raise errors.UsageError(f"--simulate {wanted!r}: must be of one device, such as h100")
    if options.scenario == OVERSUBSCRIBE:
        for given, option in ((options.seconds, "--seconds"), (options.report, "--report")):
            if given is not None:
                raise errors.UsageError(f"{option}: is for --scenario {QUOTAS} only")
    if options.report is not None:
        html_report.check_possible(options.report)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if options.scenario == OVERSUBSCRIBE:
        return _run_notebooks(options)
    if options.json:
        seen = quota_demo.run_demo(seconds, wanted, lambda _: live_display.NoDisplay())
        found = assertions.evaluate(seen)
        print(assertions.document(seen, found))
    else:
        console = _console()

        def display(plan: DemoPlan) -> live_display.Display:
            size = format_size(plan.memory)
            return _make_display(console, f"{plan.device}, {size}; six tenants; {plan.seconds} s")

        seen = quota_demo.run_demo(seconds, wanted, display)
        found = assertions.evaluate(seen)
        _conclude(console, found)
    if options.report is not None:
        html_report.write(options.report, seen, found)
    return 0 if all(verdict.holds for verdict in found) else 1


def _run_notebooks(options: argparse.Namespace) -> int:
    if options.json:
        seen = notebook_demo.run_demo(options.simulate, lambda _: live_display.NoDisplay())
        found = notebook_claims.evaluate(seen)
        print(notebook_claims.document(seen, found))
    else:
        console = _console()

        def display(plan: NotebookPlan) -> live_display.Display:
            size, quota = format_size(plan.memory), format_size(plan.quota)
            return _make_display(console, f"{plan.device}, {size}; notebooks of {quota}")

        seen = notebook_demo.run_demo(options.simulate, display)
        found = notebook_claims.evaluate(seen)
        _conclude(console, found)
    return 0 if all(verdict.holds for verdict in found) else 1


def _parse_seconds(text: str) -> int:
    shortest, longest = demo_steps.SHORTEST, demo_steps.LONGEST
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


def _make_display(console: Console, subject: str) -> live_display.Display:
    console.print(f"one device, {subject}\n")
    if console.is_terminal and not console.is_dumb_terminal:
        return live_display.LiveTable(console)
    return live_display.PlainLines(console)


def _conclude(console: Console, found: Sequence[ClaimVerdict]) -> None:
    console.print()
    console.print(live_display.verdicts(found))


def _end(number: int, _: object) -> NoReturn:
    """Unwind the stack, so that everything is cleaned up, and exit with the signal's code."""
    sys.exit(128 + number)
