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
from pyvgpu.cli import sheet, top_page, top_view, views
from pyvgpu.machine import reservations
from pyvgpu.run import runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import Group
    from rich.text import Text

    from pyvgpu.run.runs import DeviceView, RunShare

DEFAULT_SECONDS = "1"
SHORTEST, LONGEST = 0.1, 60.0
_BAR, _WIDE_BAR = 10, 30  # all in terminal columns
_BESIDE_BAR = 62
_LEAST_BAR = 4
_PAST = 30
KEYS = "h help  q quit"
_COLUMNS = (
    sheet.Column("run", least=8),
    sheet.Column("vcore", right=True),
    sheet.Column("share", right=True),
    sheet.Column("past", least=8, rank=2, tail=True),
    sheet.Column("held", right=True),
    sheet.Column("of", right=True),
    sheet.Column("", rank=3),
    sheet.Column("command", least=12, rank=1),
)
_DESCRIPTION = """\
Show, by device and run: the quota, the share of the device's time used since the last sample, the
memory held, a sparkline of past shares, the command and the processes. Runs of other users are
called USER/RUN, and only their programs are shown, without arguments. Keys sort and filter the
runs; h lists them, q or Ctrl-C quits. If standard output is not a terminal, print one sample.
"""
_EXAMPLES = """\
examples:
  pyvgpu top
  pyvgpu top --sort share
  pyvgpu top --once
  pyvgpu top --once --json
  pyvgpu top --json --interval 5 >> shares.jsonl
  pyvgpu top --serve 127.0.0.1:5678
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu top`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--once", action="store_true", help="print one sample after one interval, then exit")
    add("--json", action="store_true", help="print a line of JSON for each sample")
    add(
        "--serve",
        metavar="[ADDRESS:]PORT",
        help="serve the same as a web page, by HTTP; without an ADDRESS only to this machine",
    )
    add(
        "--sort",
        metavar="|".join(top_view.SortKey),
        default=top_view.SortKey.AGE.value,
        help="the order of the runs on each device (%(default)s)",
    )
    add(
        "--interval",
        metavar="SECONDS",
        default=DEFAULT_SECONDS,
        help=f"between two samples, {SHORTEST:g} to {LONGEST:g} ({DEFAULT_SECONDS})",
    )


def run(options: argparse.Namespace) -> int:
    """Show usage until the user quits."""
    interval = _parse_interval(options.interval)
    view = top_view.TopView(top_view.parse_sort(options.sort))
    if options.serve is not None:
        top_page.check_alone(options)
        return top_page.serve(options.serve, interval)
    watch, registries = runs.RunWatch(), reservations.Registries()
    watch.see(runs.sample(registries))  # the baseline of the first interval
    if options.json:
        _print_lines(watch, registries, interval, once=options.once)
    elif options.once or not sys.stdout.isatty():
        time.sleep(interval)
        console = views.console()
        console.print(screen(watch.see(runs.sample(registries)), interval, view, console.width))
    else:
        _live(watch, registries, interval, view)
    return 0


def screen(
    devices: Sequence[DeviceView],
    interval: float,
    view: top_view.TopView,
    width: int,
    keys: str = "",
) -> Group:
    """Return one screen, *width* columns wide: a table for each device.

    *keys* is a reminder of keys, for a terminal that reads some.
    """
    from rich.console import Group
    from rich.text import Text

    count = sum(len(device.parts) for device in devices)
    head = (
        f"pyvgpu top  {time.strftime('%H:%M:%S')}  {_count(count, 'run')} on "
        f"{_count(len(devices), 'device')}, every {interval:g} s"
    )
    gap = "   " if len(head) + len(keys) + 3 <= width else "\n"
    lines = [Text.assemble((head, "bold"), (gap + keys if keys else "", "dim"))]
    lines += [Text(view.status)] if view.status else []
    if view.help:
        lines += [Text.assemble((f"  {key:<5}", "bold"), words) for key, words in top_view.HELP]
    shown = view.arranged(devices)
    if not devices:
        lines.append(Text(f"\n{views.NO_RUNS}"))
    elif not shown:
        lines.append(Text(f"\nno run contains {view.wanted!r}"))
    note = views.note(devices)
    return Group(
        *lines,
        Text(),
        *(_table(device, width) for device in shown),
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
                "reserved_bytes": device.reserved_bytes,
                "reserved_vcore": device.reserved_vcore,
                "held_bytes": device.held,
                "share": device.share,
            }
            for device in devices
        ],
        "runs": found,
    }


def _table(device: DeviceView, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    bar = min(_WIDE_BAR, max(0, width - _BESIDE_BAR))
    bar = bar if bar >= _LEAST_BAR else 0
    gap = "  " if bar else ""
    title = Text.assemble(
        (f"{device.name}  {views.short(device)}", "bold"),
        f"\n  time    {views.bar(device.share or 0.0, bar)}{gap}"
        f"{views.percent(device.share)} used, {device.reserved_vcore} of 100 reserved",
        f"\n  memory  {views.bar(device.held / device.memory_bytes, bar)}{gap}"
        f"{views.size(device.held)} held, {views.size(device.reserved_bytes)} of "
        f"{views.size(device.memory_bytes)} reserved",
    )
    shown = device.parts if device.shown is None else device.shown
    rows = [row for part in shown for row in _rows(part)]
    return Group(title, sheet.table(_COLUMNS, rows, width))


def _rows(part: RunShare) -> Iterator[tuple[Text, ...]]:
    """Yield the row of a run, then one for each of its processes."""
    from rich.text import Text

    yield (
        Text(part.full_name, "bold"),
        Text(views.vcore(part)),
        Text(_share(part), _colour(part)),
        Text(views.spark(part.history, _PAST), "cyan"),
        Text(views.held(part), "red" if part.over or part.tampered else "none"),
        Text(views.size(part.limits.vmemory)),
        Text(
            views.bar((part.held or 0) / part.limits.vmemory, _BAR),
            "red" if part.over else "green",
        ),
        Text(views.command(part)),
    )
    nothing = Text()
    for process in part.processes:
        name = Text(f"  {process.pid} {process.name}", "dim")
        yield name, *[nothing] * 3, Text(views.size(process.held), "dim")


def _share(part: RunShare) -> str:
    """Return the share of the device's time, or that the run is suspended."""
    return part.state if part.suspension.suspended else views.percent(part.share)


def _colour(part: RunShare) -> str:
    """Return red for a share above the run's limit."""
    over = part.share is not None and 100 * part.share > part.limits.vcore_limit + 3
    return "red" if over else "none"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _print_lines(
    watch: runs.RunWatch, registries: reservations.Registries, interval: float, *, once: bool
) -> None:
    while True:
        time.sleep(interval)
        devices = watch.see(runs.sample(registries))
        print(json.dumps(document(devices, interval)), flush=True)
        if once:
            return


def _live(
    watch: runs.RunWatch,
    registries: reservations.Registries,
    interval: float,
    view: top_view.TopView,
) -> None:
    from rich.live import Live

    console = views.console()
    with _keyboard() as keyboard:
        keys = KEYS if keyboard.listens else ""

        def screens() -> Iterator[Group]:
            """Yield a screen for each sample, and after each key that changes the view."""
            nonlocal view
            while not view.quit:
                sample = watch.see(runs.sample(registries))
                until = time.monotonic() + interval
                while True:
                    yield screen(sample, interval, view, console.width, keys)
                    before = view
                    while view == before and (left := until - time.monotonic()) > 0:
                        view = view.pressed(keyboard.read(left))
                    if view == before or view.quit:
                        break

        if console.is_dumb_terminal:  # print screens one below the other: no cursor control
            for picture in screens():
                console.print(picture)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for picture in screens():
                live.update(picture, refresh=True)


class _Keyboard:
    """Reads keys from standard input, if it is a terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def listens(self) -> bool:
        """Whether there are keys to read."""
        return self._descriptor is not None

    def read(self, seconds: float) -> str:
        """Return the next keys, empty after some *seconds* without any."""
        read_from = () if self._descriptor is None else (self._descriptor,)
        ready, _, _ = select.select(read_from, (), (), seconds)
        if not ready:
            return ""
        return os.read(ready[0], 64).decode("utf-8", "ignore") or top_view.END


@contextlib.contextmanager
def _keyboard() -> Iterator[_Keyboard]:
    """Yield standard input, with its terminal set to pass on each key at once."""
    import termios
    import tty

    if not (sys.stdin and sys.stdin.isatty()):
        yield _Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _parse_interval(text: str) -> float:
    valid = re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) is not None
    if not valid or not SHORTEST <= float(text) <= LONGEST:
        raise errors.UsageError(
            f"--interval {text[:40]!r}: must be seconds from {SHORTEST:g} to {LONGEST:g}, "
            f"such as {DEFAULT_SECONDS}"
        )
    return float(text)
