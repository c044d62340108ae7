"""`pyvgpu top`: live view of the GPU usage of every run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import sys
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import sheet, views
from pyvgpu.machine import reservations, users
from pyvgpu.run import runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from pyvgpu.run.runs import DeviceView, RunShare

DEFAULT_SECONDS = "1"
SHORTEST, LONGEST = 0.1, 60.0
_BAR, _WIDE_BAR = 10, 30  # all in terminal columns
_BESIDE_BAR = 62
_PAST = 60
_COLUMNS = (
    sheet.Column("run", least=16),
    sheet.Column("user", rank=3),
    sheet.Column("vcore", right=True),
    sheet.Column("share", right=True),
    sheet.Column("past", least=8, rank=1, tail=True),
    sheet.Column("held", right=True),
    sheet.Column("of", right=True, rank=2),
    sheet.Column("", rank=4),
)
_DESCRIPTION = """\
Show, by device and run: the quota, the share of the device's time used since the last sample, the
memory held, a sparkline of past shares, and the processes. q or Ctrl-C quits. If standard output
is not a terminal, print one sample.
"""
_EXAMPLES = """\
examples:
  pyvgpu top
  pyvgpu top --once
  pyvgpu top --once --json
  pyvgpu top --json --interval 5 >> shares.jsonl
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu top`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--once", action="store_true", help="print one sample after one interval, then exit")
    add("--json", action="store_true", help="print a line of JSON for each sample")
    add(
        "--interval",
        metavar="SECONDS",
        default=DEFAULT_SECONDS,
        help=f"between two samples, {SHORTEST:g} to {LONGEST:g} ({DEFAULT_SECONDS})",
    )


def run(options: argparse.Namespace) -> int:
    """Show usage until the user quits."""
    interval = _parse_interval(options.interval)
    watch, books = runs.RunWatch(), reservations.Books()
    watch.see(runs.look(books))  # the baseline of the first interval
    if options.json:
        _print_lines(watch, books, interval, once=options.once)
    elif options.once or not sys.stdout.isatty():
        time.sleep(interval)
        console = views.console()
        console.print(screen(watch.see(runs.look(books)), interval, console.width))
    else:
        _live(watch, books, interval)
    return 0


def screen(devices: Sequence[DeviceView], interval: float, width: int) -> Group:
    """Return one screen, *width* columns wide: a table for each device."""
    from rich.console import Group
    from rich.text import Text

    if not devices:
        return Group(Text(views.NO_RUNS))
    count = sum(len(device.parts) for device in devices)
    head = (
        f"pyvgpu top  {time.strftime('%H:%M:%S')}  {_count(count, 'run')} on "
        f"{_count(len(devices), 'device')}, every {interval:g} s\n"
    )
    note = views.note(devices)
    return Group(
        Text(head, "bold"),
        *(_table(device, width) for device in devices),
        *([Text(note, "red")] if note else []),
    )


def document(devices: Sequence[DeviceView], interval: float) -> dict[str, object]:
    """Return one sample as JSON."""
    found = views.documents(devices)
    parts = [part for device in devices for part in device.parts]
    for entry, part in zip(found, parts, strict=True):
        entry["share"] = part.share
        entry["waited"] = part.waited
    return {
        "at": time.time(),
        "interval_seconds": interval,
        "devices": [
            {
                "uuid": device.uuid,
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "promised_bytes": device.promised_bytes,
                "promised_vcore": device.promised_vcore,
                "held_bytes": device.held,
                "share": device.share,
            }
            for device in devices
        ],
        "runs": found,
    }


def _table(device: DeviceView, width: int) -> Table:
    from rich.text import Text

    bar = min(_WIDE_BAR, max(_BAR, width - _BESIDE_BAR))
    title = Text.assemble(
        (f"{device.name}  {views.short(device)}", "bold"),
        f"\n  time    {views.bar(device.share or 0.0, bar)}  "
        f"{views.percent(device.share)} used, {device.promised_vcore} of 100 reserved",
        f"\n  memory  {views.bar(device.held / device.memory_bytes, bar)}  "
        f"{views.size(device.held)} held, {views.size(device.promised_bytes)} of "
        f"{views.size(device.memory_bytes)} reserved",
    )
    rows = [row for part in device.parts for row in _rows(part)]
    return sheet.table(_COLUMNS, rows, width, title)


def _rows(part: RunShare) -> Iterator[tuple[Text, ...]]:
    """Yield the row of a run, then one for each of its processes."""
    from rich.text import Text

    yield (
        Text(part.name, "bold"),
        Text(users.name(part.uid)),
        Text(views.vcore(part)),
        Text(views.percent(part.share), _colour(part)),
        Text(views.spark(part.history, _PAST), "cyan"),
        Text(views.held(part), "red" if part.over or part.tampered else "none"),
        Text(views.size(part.limits.vmemory)),
        Text(
            views.bar((part.held or 0) / part.limits.vmemory, _BAR),
            "red" if part.over else "green",
        ),
    )
    nothing = Text()
    for process in part.processes:
        name = Text(f"  {process.pid} {process.name}", "dim")
        yield name, *[nothing] * 4, Text(views.size(process.held), "dim")


def _colour(part: RunShare) -> str:
    """Return red for a share above the run's limit."""
    over = part.share is not None and 100 * part.share > part.limits.vcore_limit + 3
    return "red" if over else "none"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _print_lines(
    watch: runs.RunWatch, books: reservations.Books, interval: float, *, once: bool
) -> None:
    while True:
        time.sleep(interval)
        devices = watch.see(runs.look(books))
        print(json.dumps(document(devices, interval)), flush=True)
        if once:
            return


def _live(watch: runs.RunWatch, books: reservations.Books, interval: float) -> None:
    from rich.live import Live

    console = views.console()

    def picture() -> Group:
        return screen(watch.see(runs.look(books)), interval, console.width)

    if console.is_dumb_terminal:  # print screens one below the other: no cursor control
        with _keys() as pressed:
            console.print(picture())
            while not pressed(interval):
                console.print(picture())
        return
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(picture(), refresh=True)
        while not pressed(interval):
            live.update(picture(), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for some seconds and returns whether q was pressed."""
    import termios
    import tty

    keyboard = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select(() if keyboard is None else (keyboard,), (), (), left)
            if ready and os.read(ready[0], 64).lower() in (b"q", b""):
                return True
        return False

    if keyboard is None:
        yield pressed
        return
    before = termios.tcgetattr(keyboard)

    tty.setcbreak(keyboard)
    try:
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _parse_interval(text: str) -> float:
    valid = re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) is not None
    if not valid or not SHORTEST <= float(text) <= LONGEST:
        raise errors.UsageError(
            f"--interval {text[:40]!r}: must be seconds from {SHORTEST:g} to {LONGEST:g}, "
            f"such as {DEFAULT_SECONDS}"
        )
    return float(text)
