"""`pyvgpu top`: what every run uses of the devices, again and again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import sys
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, promises, runs
from pyvgpu.cli import views

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Group
    from rich.table import Table

    from pyvgpu.runs import DeviceView, Part

DEFAULT_SECONDS = "1"
SHORTEST, LONGEST = 0.1, 60.0
_BAR, _WIDE_BAR = 10, 30  # columns
_REST = 84  # columns of a row without its history
_LEAST, _MOST = 8, 60  # columns of a history
_DESCRIPTION = """\
Show, by device and run: the quota, the share of the device's time that was used since the last
look, the memory that is held, a line of past shares, and the processes. q or Ctrl-C ends it.
Where standard output is no terminal it looks once.
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
    add("--once", action="store_true", help="one look over one interval, then end")
    add("--json", action="store_true", help="a line of JSON for each look")
    add(
        "--interval",
        metavar="SECONDS",
        default=DEFAULT_SECONDS,
        help=f"between two looks, {SHORTEST:g} to {LONGEST:g} ({DEFAULT_SECONDS})",
    )


def run(options: argparse.Namespace) -> int:
    """Show them until the reader has had enough."""
    interval = _parse_interval(options.interval)
    watch, books = runs.Watch(), promises.Books()
    watch.see(runs.look(books))  # what is counted before does not count
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
    """Return one picture, *width* columns wide: a table for each device."""
    from rich.console import Group
    from rich.text import Text

    if not devices:
        return Group(Text(views.NOBODY))
    past = min(_MOST, max(_LEAST, width - _REST))
    count = sum(len(device.parts) for device in devices)
    head = (
        f"pyvgpu top  {time.strftime('%H:%M:%S')}  {_count(count, 'run')} on "
        f"{_count(len(devices), 'device')}, every {interval:g} s\n"
    )
    return Group(Text(head, "bold"), *(_table(device, past) for device in devices))


def document(devices: Sequence[DeviceView], interval: float) -> dict[str, object]:
    """Return one look for programs."""
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


def _table(device: DeviceView, past: int) -> Table:
    from rich import box, table, text

    title = text.Text.assemble(
        (f"{device.name}  {views.short(device)}", "bold"),
        f"\n  time    {views.bar(device.share or 0.0, _WIDE_BAR)}  "
        f"{views.percent(device.share)} used, {device.promised_vcore} of 100 promised",
        f"\n  memory  {views.bar(device.held / device.memory_bytes, _WIDE_BAR)}  "
        f"{views.size(device.held)} held, {views.size(device.promised_bytes)} of "
        f"{views.size(device.memory_bytes)} promised",
    )
    shown = table.Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="none"
    )
    shown.add_column("run", no_wrap=True)
    shown.add_column("user", no_wrap=True)
    shown.add_column("vcore", justify="right", no_wrap=True)
    shown.add_column("share", justify="right", no_wrap=True, min_width=7)
    shown.add_column("past", no_wrap=True)
    shown.add_column("held", justify="right", no_wrap=True)
    shown.add_column("of", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for part in device.parts:
        shown.add_row(
            text.Text(part.name, "bold"),
            views.user(part.uid),
            views.vcore(part),
            text.Text(views.percent(part.share), _colour(part)),
            text.Text(views.spark(part.history, past), "cyan"),
            views.size(part.held),
            views.size(part.limits.vmemory),
            text.Text(views.bar((part.held or 0) / part.limits.vmemory, _BAR), "green"),
        )
        for process in part.processes:
            shown.add_row(
                text.Text(f"  {process.pid} {process.name}", "dim"),
                *[""] * 4,
                text.Text(views.size(process.held), "dim"),
            )
    return shown


def _colour(part: Part) -> str:
    """Return red for a share that is above what the run may have."""
    over = part.share is not None and 100 * part.share > part.limits.vcore_limit + 3
    return "red" if over else "none"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _print_lines(watch: runs.Watch, books: promises.Books, interval: float, *, once: bool) -> None:
    while True:
        time.sleep(interval)
        devices = watch.see(runs.look(books))
        print(json.dumps(document(devices, interval)), flush=True)
        if once:
            return


def _live(watch: runs.Watch, books: promises.Books, interval: float) -> None:
    from rich.live import Live

    console = views.console()

    def picture() -> Group:
        return screen(watch.see(runs.look(books)), interval, console.width)

    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(picture(), refresh=True)
        while not pressed(interval):
            live.update(picture(), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield what waits for some seconds, and says whether q was pressed meanwhile."""
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
