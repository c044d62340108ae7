"""Display of a demonstration: a live table on a terminal, otherwise plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pyvgpu.demo import shares
from pyvgpu.demo.observations import (
    KERNEL_US,
    SHARERS,
    TENANTS,
    DemoPlan,
    DemoSample,
    EventKind,
    Observations,
    Role,
    TenantEvent,
    gib,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.demo.assertions import ClaimVerdict

WIDTH = 88  # columns of plain lines
_BAR = 20
_LOG_LINES = 11  # below a live table
COLOURS = {
    Role.STEADY: "green",
    Role.GROWER: "yellow",
    Role.DOOMED: "magenta",
    Role.LATE: "cyan",
    Role.SMALL: "bright_blue",
    Role.LARGE: "bright_red",
    Role.IDLE: "white",
    Role.FIRST: "green",
    Role.SECOND: "yellow",
    Role.THIRD: "magenta",
}


class Display(Protocol):
    """The display of a demonstration."""

    def add_event(self, event: TenantEvent, sentence: str) -> None:
        """Show an event."""

    def show_table(self) -> None:
        """Show the table, if the display does not show it all the time."""

    def update_table(self, draw: Callable[[], Table]) -> None:
        """Use *draw* from now on, which returns the table of the last sample."""

    def close(self) -> None:
        """Stop updating; the terminal keeps what was shown."""


class NoDisplay:
    """Shows nothing."""

    def add_event(self, event: TenantEvent, sentence: str) -> None:
        """Show nothing."""

    def show_table(self) -> None:
        """Show nothing."""

    def update_table(self, draw: Callable[[], Table]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class PlainLines:
    """Prints a line for each event, and the table on request."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table: Callable[[], Table] | None = None

    def add_event(self, event: TenantEvent, sentence: str) -> None:
        """Print a line."""
        self._console.print(line(event, sentence), soft_wrap=True)

    def show_table(self) -> None:
        """Print the table."""
        if self._table is not None:
            self._console.print(self._table())

    def update_table(self, draw: Callable[[], Table]) -> None:
        """Keep *draw* for show_table."""
        self._table = draw

    def close(self) -> None:
        """Do nothing: every line was printed at once."""


class LiveTable:
    """A live table, with a log below it."""

    def __init__(self, console: Console) -> None:
        self._log: list[Text] = []
        self._table: Callable[[], Table] | None = None
        self._live = Live(console=console, refresh_per_second=10, get_renderable=self._draw)
        self._live.start()

    def add_event(self, event: TenantEvent, sentence: str) -> None:
        """Add a line to the log."""
        self._log.append(line(event, sentence))

    def show_table(self) -> None:
        """Do nothing: the table is always visible."""

    def update_table(self, draw: Callable[[], Table]) -> None:
        """Update the table."""
        self._table = draw

    def close(self) -> None:
        """Stop updating; the last state stays."""
        self._live.stop()

    def _draw(self) -> Group:
        above = [self._table()] if self._table else []
        return Group(*above, *self._log[-_LOG_LINES:])


def line(event: TenantEvent, sentence: str) -> Text:
    """Return one line of the log."""
    shown = Text(f"{event.seconds:5.1f} s  ", style="dim")
    shown.append(f"{event.role:<8}", style=COLOURS[event.role])
    return shown.append(sentence, style="none")


def table(plan: DemoPlan, samples: Sequence[DemoSample]) -> Table:
    """Return reserved, used and free memory at the last of *samples*, by tenant and in total."""
    sample = samples[-1]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("tenant")
    for heading in ("reserved", "used", "free"):
        shown.add_column(heading, justify="right", min_width=9)
    shown.add_column("", no_wrap=True)
    for heading in ("vcore", "share"):
        shown.add_column(heading, justify="right", min_width=5)
    reserved = 0
    for role in TENANTS:
        used, quota = sample.of(role).charged, plan.quota(role)
        reserved += quota
        shown.add_row(
            Text(role, style=COLOURS[role]),
            *(gib(size) for size in (quota, used, quota - used)),
            Text(_bar(used, quota), style=COLOURS[role]),
            *_time(samples, role),
        )
    shown.add_section()
    shown.add_row(
        "device",
        *(gib(size) for size in (reserved, sample.used, plan.memory - sample.used)),
        _device_bar(plan, sample),
        str(sum(SHARERS.values())),
        _percent(sum(shares.recent(samples, role) for role in SHARERS)),
    )
    return shown


def sentence(event: TenantEvent, seen: Observations) -> str | None:
    """Return the sentence about *event*, None if it is not worth a line."""
    is_first = seen.first(event.role, event.kind) == event
    said = _SENTENCES.get(event.kind)
    if said is None or (event.kind in _ONCE and not is_first):
        return None
    if event.kind is EventKind.START and not is_first:
        return "the run's next process starts, with the same quota"
    if event.kind is EventKind.HELD and not is_first:
        return f"it gets {gib(event.size)} again"
    if event.kind is EventKind.ENDED and event.number:
        said = next((x for role, x in reversed(seen.remarks) if role is event.role), "")
        return f"its run ended with exit code {event.number}" + (f": {said}" if said else "")
    return said.format(
        quota=gib(seen.plan.quota(event.role)),
        size=gib(event.size),
        free=gib(event.free),
        pid=event.pid,
        text=event.text,
        kernel=KERNEL_US / 1000,
        vcore=SHARERS.get(event.role),
    )


def verdicts(found: Sequence[ClaimVerdict]) -> Group:
    """Return a line or two per claim, and the summary."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for verdict in found:
        mark = Text("holds ", "bold green") if verdict.holds else Text("FAILED", "bold red")
        shown.add_row(mark, Text.assemble((verdict.claim, "bold"), f"\n{verdict.seen}"))
    failed = [verdict.claim for verdict in found if not verdict.holds]
    summary = Text(f"\n{len(found) - len(failed)} of {len(found)} claims hold")
    if failed:
        summary.append(f"; failed: {'; '.join(failed)}")
    return Group(shown, summary)


_ONCE = frozenset({EventKind.ROUND, EventKind.REFUSED, EventKind.SPUN})
_SENTENCES = {
    EventKind.START: "runs with {quota}; the driver reports a device of {size}",
    EventKind.ROUND: "computes in {size} and reads every byte back: all right; and again",
    EventKind.REFUSED: "holds {size}, requests more: {text}; keeps trying",
    EventKind.HELD: "holds {size}",
    EventKind.SPUN: "launches kernels of {kernel:g} ms all the time; {vcore} of 100 are reserved",
    EventKind.FAILED: "{text}",
    EventKind.KILLED: "kill -9 of its process {pid}, which holds {size} and a context",
    EventKind.ENDED: "ended by itself",
    EventKind.START_REFUSED: "{text}",
}


def _time(samples: Sequence[DemoSample], role: Role) -> tuple[str, str]:
    """Return the vcore, and the share in the last second."""
    if role not in SHARERS:
        return "", ""
    return str(SHARERS[role]), _percent(shares.recent(samples, role))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _bar(used: int, whole: int) -> str:
    filled = max(0, min(_BAR, round(_BAR * used / whole)))
    return "█" * filled + "░" * (_BAR - filled)


def _device_bar(plan: DemoPlan, sample: DemoSample) -> Text:
    """Draw the tenants' parts of the device's memory; a part that is not empty is visible."""
    shown = Text()
    for role in TENANTS:
        cells = -(-_BAR * sample.of(role).charged // plan.memory)
        shown.append("█" * cells, style=COLOURS[role])
    return shown.append("░" * max(0, _BAR - len(shown)), style="none")
