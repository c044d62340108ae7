"""`pyvgpu replay FILE`: estimate the slowdown of a profiled job with a share of a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files, log, quantity
from pyvgpu.cli import table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyvgpu.replay.trace import Trace

DEFAULT_VCORES = (10, 25, 50, 75, 90)
MOST_BESIDE = 3
WIDTH = 110
_DESCRIPTION = """\
Replay a profiler's recording of your job on a simulated device, with shares and without, and print
how much a share would slow it down, and how jobs affect each other. FILE is a JSON trace of the
PyTorch profiler (trace.json or trace.json.gz), or an export of Nsight Systems (report.sqlite;
`nsys export --type sqlite report.nsys-rep` writes it). The shim, the arbiter and the driver calls
are real, the device and its clock are simulated: this needs no GPU, and other load on this machine
does not change the result.
"""
_EXAMPLES = """\
examples:
  pyvgpu replay trace.json.gz
  pyvgpu replay trace.json --vcore 30 --vcore 60
  ssh gpu-1 cat trace.json.gz | pyvgpu replay -
  pyvgpu replay train.json --vcore 60 --beside serve.sqlite --vcore 40
  pyvgpu replay trace.json --html replay.html
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu replay`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help=f"the recording of a job; {input_files.HELP}")
    add(
        "--vcore",
        metavar="N",
        action="append",
        default=[],
        help="a share to try, 1 to 100, may be given several times (10, 25, 50, 75 and 90); with "
        "--beside one for each job, in the same order",
    )
    add(
        "--beside",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help=f"another job that runs at the same time, {MOST_BESIDE} at most; {input_files.HELP}",
    )
    add("--process", metavar="PID", help="the process in FILE (the one with most work)")
    add("--device", metavar="INDEX", help="the device in FILE (the one with most work)")
    add("--html", metavar="FILE.html", type=Path, help="write an HTML report with bar charts")
    add("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Replay the recordings and print the results."""
    from pyvgpu.replay import compare, replay_output

    vcores = _vcores(options)
    input_files.check_one_standard_input(options.file, *options.beside)
    process = _number(options.process, "--process", 4242)
    device = _number(options.device, "--device", 0)
    traces = [
        _open(options.file, process, device),
        *(_open(path, None, None) for path in options.beside),
    ]
    several = len(traces) > 1
    jobs = compare.beside(traces, vcores) if several else [compare.alone(traces[0], vcores)]
    if options.json:
        print(json.dumps(replay_output.document(jobs, vcores), indent=2))
    else:
        _print(replay_output.tables(jobs), replay_output.NOTE)
    if options.html is not None:
        try:
            options.html.write_text(replay_output.page(jobs), encoding="utf-8")
        except OSError as exc:
            raise errors.of_files(f"--html {options.html}: cannot be written", exc) from exc
    return 0


def _vcores(options: argparse.Namespace) -> Sequence[int]:
    given = [quantity.parse_vcore(text, "--vcore") for text in options.vcore]
    if len(options.beside) > MOST_BESIDE:
        raise errors.UsageError(
            f"--beside {options.beside[MOST_BESIDE]}: must be given {MOST_BESIDE} times at most"
        )
    if not options.beside:
        return given or DEFAULT_VCORES
    jobs = 1 + len(options.beside)
    if len(given) != jobs:
        raise errors.UsageError(
            f"--vcore is given {len(given)} times for {jobs} jobs; with --beside each job must "
            "have one, such as `pyvgpu replay a.json --vcore 60 --beside b.json --vcore 40`"
        )
    if sum(given) > 100:
        raise errors.UsageError(
            f"--vcore {' and '.join(map(str, given))}: must be 100 together at most, such as 60 "
            "and 40"
        )
    return given


def _number(text: str | None, flag: str, example: int) -> int | None:
    return None if text is None else int(table.whole(0, 2**31, example)(text, flag))


def _open(path: Path, process: int | None, device: int | None) -> Trace:
    from pyvgpu.replay import profile_import, recording

    found = profile_import.read(path)
    path = Path(input_files.title(path))
    choice = recording.choose(found, path, process, device)
    if process is None and len(choice.processes) > 1:
        _say_choice(path, "process", choice.process, choice.processes)
    if device is None and len(choice.devices) > 1:
        _say_choice(path, "device", choice.device, choice.devices)
    return recording.make_trace(path.name, found, choice)


def _say_choice(path: Path, what: str, chosen: int, there: Sequence[int]) -> None:
    others = ", ".join(str(each) for each in sorted(there) if each != chosen)
    log.say(
        f"{path}: {what} {chosen} has most of the work and is replayed; there are also {others}"
    )


def _print(shown: Sequence[object], note: str) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, width=width)
    for each in shown:
        if isinstance(each, str):
            console.print(each, markup=False, soft_wrap=True)
        else:
            console.print(each)
            console.print()
    console.print(note, markup=False)
